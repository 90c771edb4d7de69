// Command charts draws what fanfare bench has measured.
//
// It reads files of lines as fanfare bench --json prints them, each file of one
// place that was measured (a store, a disk), draws pictures of them, and prints
// them as a table in Markdown. It is a module of its own so that the product does
// not depend on what it draws with.
//
// Pictures have a white background of their own and dark text, so that they can be
// read on a page of any colour, and no text as outlines, so that it can be found.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "charts:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("charts", flag.ContinueOnError)
	out := flags.String("out", ".", "directory for the pictures")
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "Usage: charts [--out DIRECTORY] RESULTS.json…")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return fmt.Errorf("no results are given")
	}
	places, err := readPlaces(flags.Args())
	if err != nil {
		return err
	}
	for _, p := range pictures(places) {
		picture, err := p.draw()
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if err := os.WriteFile(filepath.Join(*out, p.name+".svg"), picture, 0o644); err != nil {
			return err
		}
	}
	return writeTable(stdout, places)
}
