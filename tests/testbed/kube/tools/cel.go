package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/runtime/cel"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// runCel reads a JSON list of objects and writes what Flux makes of each by the expressions that are its only argument,
// as JSON: `{"current": …, "inProgress": …, "failed": …}`. The evaluator is Flux's own.
func runCel(arguments []string, in io.Reader, out io.Writer) error {
	if len(arguments) != 1 {
		return fmt.Errorf("usage: tools cel EXPRESSIONS < OBJECTS")
	}
	expressions := &kustomize.HealthCheckExpressions{}
	if err := json.Unmarshal([]byte(arguments[0]), expressions); err != nil {
		return err
	}
	evaluator, err := cel.NewStatusEvaluator(expressions)
	if err != nil {
		return err
	}
	objects, err := readObjects(in)
	if err != nil {
		return err
	}
	verdicts := make([]verdict, 0, len(objects))
	for _, raw := range objects {
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(raw); err != nil {
			return err
		}
		result, err := evaluator.Evaluate(context.Background(), object)
		if err != nil {
			return err
		}
		verdicts = append(verdicts, verdict{result.Status.String(), result.Message})
	}
	return json.NewEncoder(out).Encode(verdicts)
}
