// Ollama's own client in Go, against the address that is given: prints what it read as JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/ollama/ollama/api"
)

type found map[string]any

func check(where string, err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", where, err)
		os.Exit(1)
	}
}

// What a call was refused with, as the client tells it.
func refusal(err error) any {
	var status api.StatusError
	if errors.As(err, &status) {
		return found{"status": status.StatusCode, "words": status.ErrorMessage}
	}
	return fmt.Sprint(err)
}

func main() {
	base, err := url.Parse(os.Args[1])
	check("address", err)
	embedder, err := url.Parse(os.Args[2])
	check("address", err)
	client := api.NewClient(base, http.DefaultClient)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	defer cancel()
	no, options := false, map[string]any{"num_predict": 8, "temperature": 0, "seed": 1}
	out := found{}

	check("heartbeat", client.Heartbeat(ctx))
	out["version"], err = client.Version(ctx)
	check("version", err)

	chat := func(stream *bool) (pieces int, text string, last api.ChatResponse) {
		request := &api.ChatRequest{Model: "m", Stream: stream, Options: options,
			Messages: []api.Message{{Role: "user", Content: "Say hello."}}, KeepAlive: &api.Duration{Duration: time.Minute}}
		check("chat", client.Chat(ctx, request, func(each api.ChatResponse) error {
			pieces, text, last = pieces+1, text+each.Message.Content, each
			return nil
		}))
		return
	}
	pieces, text, last := chat(nil)
	out["chat"] = found{"pieces": pieces, "text": text, "done": last.Done, "reason": last.DoneReason, "model": last.Model,
		"made": !last.CreatedAt.IsZero(), "prompt": last.PromptEvalCount, "tokens": last.EvalCount,
		"timed": last.TotalDuration > 0 && last.EvalDuration > 0, "role": last.Message.Role}
	pieces, text, last = chat(&no)
	out["chat_whole"] = found{"pieces": pieces, "text": text, "done": last.Done, "tokens": last.EvalCount}

	generate := func(stream *bool) (pieces int, text string, last api.GenerateResponse) {
		request := &api.GenerateRequest{Model: "m:latest", Prompt: "Say hello.", Stream: stream, Options: options}
		check("generate", client.Generate(ctx, request, func(each api.GenerateResponse) error {
			pieces, text, last = pieces+1, text+each.Response, each
			return nil
		}))
		return
	}
	pieces, text, ended := generate(nil)
	out["generate"] = found{"pieces": pieces, "text": text, "done": ended.Done, "reason": ended.DoneReason, "tokens": ended.EvalCount}
	pieces, text, ended = generate(&no)
	out["generate_whole"] = found{"pieces": pieces, "text": text, "done": ended.Done, "tokens": ended.EvalCount}

	var answer api.ChatResponse
	check("format", client.Chat(ctx, &api.ChatRequest{Model: "m", Stream: &no, Options: map[string]any{"num_predict": 64},
		Messages: []api.Message{{Role: "user", Content: "Is water wet?"}},
		Format:   json.RawMessage(`{"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"],"additionalProperties":false}`)},
		func(each api.ChatResponse) error { answer = each; return nil }))
	out["format"] = answer.Message.Content

	var loaded api.GenerateResponse
	check("load", client.Generate(ctx, &api.GenerateRequest{Model: "m"}, func(each api.GenerateResponse) error { loaded = each; return nil }))
	out["load"] = found{"done": loaded.Done, "reason": loaded.DoneReason}

	list, err := client.List(ctx)
	check("list", err)
	for _, each := range list.Models {
		out["list"] = found{"name": each.Name, "model": each.Model, "digest": each.Digest, "modified": !each.ModifiedAt.IsZero()}
	}
	shown, err := client.Show(ctx, &api.ShowRequest{Model: "m"})
	check("show", err)
	out["show"] = found{"capabilities": shown.Capabilities, "info": shown.ModelInfo, "modified": !shown.ModifiedAt.IsZero()}
	running, err := client.ListRunning(ctx)
	check("ps", err)
	for _, each := range running.Models {
		out["ps"] = found{"name": each.Name, "context": each.ContextLength, "expires": each.ExpiresAt.After(time.Now())}
	}
	states := []string{}
	check("pull", client.Pull(ctx, &api.PullRequest{Model: "m"}, func(each api.ProgressResponse) error {
		states = append(states, each.Status)
		return nil
	}))
	out["pull"] = states

	embedding := api.NewClient(embedder, http.DefaultClient)
	vectors, err := embedding.Embed(ctx, &api.EmbedRequest{Model: "m", Input: []string{"a cat", "a dog"}})
	check("embed", err)
	out["embed"] = found{"count": len(vectors.Embeddings), "width": len(vectors.Embeddings[0]), "tokens": vectors.PromptEvalCount, "model": vectors.Model}
	vector, err := embedding.Embeddings(ctx, &api.EmbeddingRequest{Model: "m", Prompt: "a cat"})
	check("embeddings", err)
	out["embeddings"] = len(vector.Embedding)

	nothing := func(api.ChatResponse) error { return nil }
	_, err = client.Show(ctx, &api.ShowRequest{Model: "none"})
	out["unknown_show"] = refusal(err)
	out["unknown_chat"] = refusal(client.Chat(ctx, &api.ChatRequest{Model: "none", Messages: []api.Message{{Role: "user", Content: "Hi"}}}, nothing))
	out["unknown_pull"] = refusal(client.Pull(ctx, &api.PullRequest{Model: "none"}, func(api.ProgressResponse) error { return nil }))
	out["too_long"] = refusal(client.Chat(ctx, &api.ChatRequest{Model: "m", Options: map[string]any{"num_ctx": 1 << 20},
		Messages: []api.Message{{Role: "user", Content: "Hi"}}}, nothing))
	out["delete"] = refusal(client.Delete(ctx, &api.DeleteRequest{Model: "m"}))
	out["copy"] = refusal(client.Copy(ctx, &api.CopyRequest{Source: "m", Destination: "n"}))
	out["create"] = refusal(client.Create(ctx, &api.CreateRequest{Model: "n", From: "m"}, func(api.ProgressResponse) error { return nil }))
	check("output", json.NewEncoder(os.Stdout).Encode(out))
}
