// Programs that platform teams judge manifests with, in one file to cache: helm, kstatus, and the interpreters of Argo
// CD's (Lua) and Flux's (CEL) health checks. The first argument chooses.
package main

import (
	"fmt"
	"os"
)

const (
	failed   = 1
	wrongUse = 2
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: tools helm|kstatus|lua|cel [ARGUMENT...]")
		os.Exit(wrongUse)
	}
	program := os.Args[1]
	os.Args = append([]string{program}, os.Args[2:]...)
	var err error
	switch program {
	case "helm":
		runHelm()
		return
	case "kstatus":
		err = runKstatus(os.Stdin, os.Stdout)
	case "lua":
		err = runLua(os.Args[1:], os.Stdin, os.Stdout)
	case "cel":
		err = runCel(os.Args[1:], os.Stdin, os.Stdout)
	default:
		fmt.Fprintf(os.Stderr, "tools: no program named %q\n", program)
		os.Exit(wrongUse)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
		os.Exit(failed)
	}
}
