package main

import (
	"encoding/json"
	"io"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

// verdict is what one judge says of one object.
type verdict struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

// runKstatus reads a JSON list of objects and writes the list of verdicts.
func runKstatus(in io.Reader, out io.Writer) error {
	objects, err := readObjects(in)
	if err != nil {
		return err
	}
	verdicts := make([]verdict, 0, len(objects))
	for _, raw := range objects {
		object := &unstructured.Unstructured{}
		// Its own decoder keeps whole numbers whole, which the library insists on.
		if err := object.UnmarshalJSON(raw); err != nil {
			return err
		}
		result, err := status.Compute(object)
		if err != nil {
			return err
		}
		verdicts = append(verdicts, verdict{result.Status.String(), result.Message})
	}
	return json.NewEncoder(out).Encode(verdicts)
}

func readObjects(in io.Reader) ([]json.RawMessage, error) {
	var objects []json.RawMessage
	err := json.NewDecoder(in).Decode(&objects)
	return objects, err
}
