package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set when a release is built.
var version = ""

func (p *program) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this binary",
		Example: "  fanfare version",
		Args:    noArguments,
		RunE:    action(p.printVersion),
	}
}

func (p *program) printVersion(*cobra.Command, []string) error {
	if _, err := fmt.Fprintf(p.stdout, "fanfare %s %s %s/%s\n", buildVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH); err != nil {
		return &outputError{err}
	}
	return nil
}

// buildVersion is the release's version, or what the Go tool knows of the build.
func buildVersion() string {
	if version != "" {
		return version
	}
	if build, ok := debug.ReadBuildInfo(); ok && build.Main.Version != "" {
		return build.Main.Version
	}
	return "(devel)"
}

// noArguments refuses arguments that are no flags.
func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("takes no arguments, got %q", args[0])
	}
	return nil
}
