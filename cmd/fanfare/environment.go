package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const environmentPrefix = "FANFARE_"

// foreignPrefixes begin variables that are not meant for this program:
// Kubernetes sets the first two for a service called "fanfare", and the third is
// for tests. No flag has such a name.
var foreignPrefixes = []string{environmentPrefix + "SERVICE_", environmentPrefix + "PORT", environmentPrefix + "TEST_"}

// exclusions are pairs of flags that contradict each other.
var exclusions = [][2]string{
	{"data", "file"}, {"data", "lines"}, {"file", "lines"},
	{"lines", "key"}, {"lines", "expected"},
	{"ephemeral", "key"}, {"ephemeral", "expected"},
	{"from", "last"},
	{"prefix", "default"},
	{"self", "server"}, {"database", "server"},
	{tokenFlag, tokenFileFlag},
}

// commandLineOnly marks flags that no variable sets: a command that changes what
// others share does exactly what stands there.
const commandLineOnly = "fanfare_command_line_only"

func onlyOnCommandLine(cmd *cobra.Command, flags ...string) {
	for _, name := range flags {
		// Its error is that there is no such flag, which tests of the command find.
		_ = cmd.Flags().SetAnnotation(name, commandLineOnly, nil)
	}
}

// fromVariable marks flags that a variable has set.
const fromVariable = "fanfare_from_variable"

// onCommandLine reports whether a flag stands on the command line.
func onCommandLine(flags *pflag.FlagSet, name string) bool {
	f := flags.Lookup(name)
	_, variable := f.Annotations[fromVariable]
	return f.Changed && !variable
}

// hasVariable reports whether a variable of the environment may set a flag.
func hasVariable(f *pflag.Flag) bool {
	_, only := f.Annotations[commandLineOnly]
	return !only && f.Name != "help" && f.Name != "version"
}

// parseEnvironment turns "NAME=value" entries into a map.
func parseEnvironment(env []string) map[string]string {
	variables := map[string]string{}
	for _, entry := range env {
		name, value, _ := strings.Cut(entry, "=")
		variables[name] = value
	}
	return variables
}

// variableName is the environment variable of a flag: FANFARE_DRAIN_DELAY of
// drain-delay.
func variableName(flag string) string {
	return environmentPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// applyEnvironment sets cmd's flags that the command line does not set from the
// environment, where an empty variable counts as none. It warns, once, of
// variables that belong to no flag of any command: most likely a misspelt one.
func (p *program) applyEnvironment(cmd *cobra.Command) error {
	given := givenFlags(cmd)
	if err := refuseTokenOnCommandLine(given); err != nil {
		return err
	}
	var errs []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		value := p.env[variableName(f.Name)]
		if !hasVariable(f) || value == "" || given[f.Name] || excludedBy(f.Name, given) {
			return
		}
		if err := setFromVariable(cmd.Flags(), f, value); err != nil {
			errs = append(errs, variableError(f, err))
		}
	})
	if len(errs) > 0 {
		return usagef("%s", strings.Join(errs, "; "))
	}
	p.warnOfUnknownVariables(cmd)
	return checkExclusions(cmd)
}

// givenFlags are those that stand on the command line.
func givenFlags(cmd *cobra.Command) map[string]bool {
	given := map[string]bool{}
	cmd.Flags().Visit(func(f *pflag.Flag) { given[f.Name] = true })
	return given
}

// excludedBy reports whether a given flag contradicts the one named: the
// command line comes before the environment, so the variable is then left aside.
func excludedBy(name string, given map[string]bool) bool {
	return slices.ContainsFunc(exclusions, func(pair [2]string) bool {
		return pair[0] == name && given[pair[1]] || pair[1] == name && given[pair[0]]
	})
}

// setFromVariable sets a flag. A flag that may be repeated takes one value from
// each line of the variable.
func setFromVariable(flags *pflag.FlagSet, f *pflag.Flag, value string) error {
	values := []string{value}
	if f.Value.Type() == "stringArray" {
		values = strings.Split(strings.TrimSuffix(value, "\n"), "\n")
	}
	for _, v := range values {
		if err := flags.Set(f.Name, v); err != nil {
			return err
		}
	}
	return flags.SetAnnotation(f.Name, fromVariable, nil)
}

// variableError is the text of an error of setting a flag from its variable.
func variableError(f *pflag.Flag, err error) string {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		if text := invalidValue(variableName(f.Name), invalid); text != "" {
			return text
		}
	}
	return fmt.Sprintf("%s: %v", variableName(f.Name), err)
}

func checkExclusions(cmd *cobra.Command) error {
	for _, pair := range exclusions {
		if cmd.Flags().Changed(pair[0]) && cmd.Flags().Changed(pair[1]) {
			return usagef("--%s and --%s exclude each other", pair[0], pair[1])
		}
	}
	return nil
}

func (p *program) warnOfUnknownVariables(cmd *cobra.Command) {
	known := map[string]bool{}
	eachCommand(cmd.Root(), func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if hasVariable(f) {
				known[variableName(f.Name)] = true
			}
		})
	})
	var unknown []string
	for name := range p.env {
		if !strings.HasPrefix(name, environmentPrefix) {
			continue
		}
		foreign := slices.ContainsFunc(foreignPrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		if !known[name] && !foreign {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		p.complain(cmd, "warning: no flag belongs to the environment variable "+strings.Join(unknown, ", "))
	}
}

// eachCommand calls visit with cmd and all commands below it.
func eachCommand(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, c := range cmd.Commands() {
		eachCommand(c, visit)
	}
}
