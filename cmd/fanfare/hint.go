package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// hint says what an error of the command line probably meant, as a sentence with
// a space after it; "" if there is nothing to say.
func hint(cmd *cobra.Command, err error) string {
	text := hintText(cmd, err)
	if text == "" {
		return ""
	}
	return text + " "
}

func hintText(cmd *cobra.Command, err error) string {
	var usage *usageError
	var unknown *pflag.NotExistError
	var word string
	switch {
	case errors.As(err, &usage):
		return usage.hint
	case errors.As(err, &unknown):
		return flagHint(cmd, unknown)
	}
	// The library has no type for this one.
	if _, scanning := fmt.Sscanf(err.Error(), "unknown command %q", &word); scanning == nil {
		return didYouMean(closest(word, commandNames(cmd)))
	}
	return ""
}

// flagHint finds the flag that was meant, also by one dash where two are needed.
func flagHint(cmd *cobra.Command, unknown *pflag.NotExistError) string {
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	typed := unknown.GetSpecifiedName()
	if shorthands := unknown.GetSpecifiedShortnames(); shorthands != "" {
		typed, _, _ = strings.Cut(shorthands, "=")
		if len(typed) == 1 {
			return "" // it is too short to be alike to anything
		}
	}
	meant := closest(typed, names)
	for i := range meant {
		meant[i] = "--" + meant[i]
	}
	return didYouMean(meant)
}

// valueTypes say what flags take, by the library's types.
var valueTypes = map[string]string{
	"uint64":   "a number from 0 to 18446744073709551615",
	"int64":    "a number, at most 9223372036854775807",
	"int":      "a number, at most 9223372036854775807",
	"duration": "a duration such as 500ms, 30s or 5m, at most 2562047h",
	"bool":     "true or false",
}

// errorText is the message of an error of the command line.
func errorText(err error) string {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		if text := invalidValue("--"+invalid.GetFlag().Name, invalid); text != "" {
			return text
		}
	}
	return err.Error()
}

// invalidValue says what a flag takes that got something else, instead of which
// function could not parse it; "" if the flag says so itself. name is how the
// flag was given.
func invalidValue(name string, err *pflag.InvalidValueError) string {
	takes := valueTypes[err.GetFlag().Value.Type()]
	if takes == "" {
		return ""
	}
	return fmt.Sprintf("%s takes %s, not %q", name, takes, err.GetValue())
}

func commandNames(parent *cobra.Command) []string {
	var names []string
	for _, c := range parent.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
			names = append(names, c.Aliases...)
		}
	}
	return names
}

// meanings are other words for ours, which users of other programs try first.
var meanings = map[string]string{
	"subscribe": "consume follow listen sub tail watch",
	"publish":   "emit produce pub push send",
	"serve":     "daemon run server start",
	"streams":   "channels list ls topics",
	"policy":    "policies retention",
	"health":    "ping ready status",
	"get":       "show",
	"set":       "put",
	"remove":    "delete rm unset",
	"oldest":    "all beginning earliest first start",
	"live":      "end latest new newest now tail",
}

// closest returns those of the words that are spelt like the one typed or begin
// with it, or mean the same.
func closest(typed string, words []string) []string {
	// The library compares commands only.
	parent := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, word := range words {
		command := &cobra.Command{Use: word, Run: func(*cobra.Command, []string) {}}
		if slices.Contains(strings.Fields(meanings[word]), strings.ToLower(typed)) {
			command.SuggestFor = []string{typed}
		}
		parent.AddCommand(command)
	}
	return slices.Compact(parent.SuggestionsFor(typed))
}

// didYouMean asks for the words; "" if there are none.
func didYouMean(words []string) string {
	switch n := len(words); n {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("did you mean %s?", words[0])
	default:
		return fmt.Sprintf("did you mean %s or %s?", strings.Join(words[:n-1], ", "), words[n-1])
	}
}
