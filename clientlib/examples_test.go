package clientlib_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Not called by users of the libraries but through fmt, encoding, errors and grpc.
var called = map[string]bool{
	"Error": true, "Is": true, "Unwrap": true, "GRPCStatus": true, "String": true, "MarshalText": true, "UnmarshalText": true, "IsZero": true,
	"Invoke": true, "NewStream": true,
}

// Whatever a user calls or compares with stands in an example that runs. Types are in what
// makes them.
func TestEverythingExportedHasAnExample(t *testing.T) {
	for directory, atLeast := range map[string]int{".": 45, "failover": 12} {
		examples := examplesIn(t, directory)
		names := 0
		for _, name := range exportedIn(t, directory) {
			names++
			if !regexp.MustCompile(`\b` + name + `\b`).MatchString(examples) {
				t.Errorf("%s: %s is in no example", directory, name)
			}
		}
		if names < atLeast {
			t.Errorf("%s: only %d exported names were found", directory, names)
		}
	}
}

// examplesIn is the text of a package's examples, without their comments.
func examplesIn(t *testing.T, directory string) string {
	t.Helper()
	var text strings.Builder
	for _, name := range goFiles(t, directory) {
		if !strings.HasPrefix(filepath.Base(name), "example_") {
			continue
		}
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString(regexp.MustCompile(`(?m)^\s*//.*$`).ReplaceAllString(string(source), ""))
	}
	return text.String()
}

// exportedIn are the functions, methods, constants and variables of a package that its
// users name.
func exportedIn(t *testing.T, directory string) (names []string) {
	t.Helper()
	add := func(name *ast.Ident) {
		if name.IsExported() && !called[name.Name] {
			names = append(names, name.Name)
		}
	}
	for _, file := range goFiles(t, directory) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil || ast.IsExported(receiver(d)) {
					add(d.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if values, ok := spec.(*ast.ValueSpec); ok {
						for _, name := range values.Names {
							add(name)
						}
					}
				}
			}
		}
	}
	return names
}

// receiver is the name of the type that a method is of.
func receiver(d *ast.FuncDecl) string {
	of := d.Recv.List[0].Type
	if pointer, ok := of.(*ast.StarExpr); ok {
		of = pointer.X
	}
	if name, ok := of.(*ast.Ident); ok {
		return name.Name
	}
	return ""
}

func goFiles(t *testing.T, directory string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(directory, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}
