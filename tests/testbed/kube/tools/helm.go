package main

import (
	"errors"
	"log/slog"
	"os"

	"helm.sh/helm/v4/pkg/cmd"
	"helm.sh/helm/v4/pkg/kube"
)

// runHelm is helm's own command line; it ends the process when a command fails.
func runHelm() {
	kube.ManagedFieldsManager = "helm"
	command, err := cmd.NewRootCmd(os.Stdout, os.Args[1:], cmd.SetupLogging)
	if err != nil {
		slog.Error("helm can't start", slog.Any("error", err))
		os.Exit(failed)
	}
	if err := command.Execute(); err != nil {
		if ended, ok := errors.AsType[cmd.CommandError](err); ok {
			os.Exit(ended.ExitCode)
		}
		os.Exit(failed)
	}
}
