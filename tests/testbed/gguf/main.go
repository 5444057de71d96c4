// Prints the memory that an independent parser expects llama.cpp to take for one GGUF file, as JSON.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"

	parser "github.com/gpustack/gguf-parser-go"
)

// What Covey stamps on every llama-server.
const (
	batchTokens      = 2048
	microBatchTokens = 512
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: gguf FILE CONTEXT_TOKENS")
		os.Exit(2)
	}
	context, err := strconv.ParseInt(os.Args[2], 10, 32)
	if err != nil {
		fail(err)
	}
	file, err := parser.ParseGGUFFile(os.Args[1], parser.UseMMap())
	if err != nil {
		fail(err)
	}
	estimate := file.EstimateLLaMACppRun(
		parser.WithLLaMACppContextSize(int32(context)),
		parser.WithLLaMACppLogicalBatchSize(batchTokens),
		parser.WithLLaMACppPhysicalBatchSize(microBatchTokens),
		parser.WithLLaMACppOffloadLayers(0),
		parser.WithFlashAttention(),
		parser.WithParallelSize(1),
	)
	if err := json.NewEncoder(os.Stdout).Encode(estimate); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
