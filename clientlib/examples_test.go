package clientlib_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
)

// Not called by users of the library but through fmt, encoding and errors.
var called = map[string]bool{
	"Error": true, "Is": true, "Unwrap": true, "GRPCStatus": true, "String": true, "MarshalText": true, "UnmarshalText": true, "IsZero": true,
}

// Whatever a user calls stands in an example that runs.
func TestEverythingExportedHasAnExample(t *testing.T) {
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	examples, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	functions := 0
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			function, ok := d.(*ast.FuncDecl)
			if !ok || !function.Name.IsExported() || called[function.Name.Name] {
				continue
			}
			functions++
			if !strings.Contains(string(examples), "."+function.Name.Name+"(") {
				t.Errorf("%s is in no example", function.Name.Name)
			}
		}
	}
	if functions < 25 {
		t.Errorf("only %d exported functions were found", functions)
	}
}
