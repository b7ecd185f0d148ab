package tests

import (
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestGates: go test ./... runs no test of the whole system, because the first statement of each
// such test skips it.
func TestGates(t *testing.T) {
	// Tests of tables and pages, which boot nothing.
	pure := []string{"system/interop/peer/kernels_test.go", "system/interop/peer/page_test.go", "system/pages/ran_test.go"}
	var files []string
	for _, dir := range []string{"system/*", "system/interop/peer"} {
		in, err := filepath.Glob(dir + "/*_test.go")
		if err != nil || len(in) == 0 {
			t.Fatalf("%d files in %s: %v", len(in), dir, err)
		}
		files = append(files, in...)
	}
	for _, name := range files {
		if slices.Contains(pure, name) {
			continue
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Test") || fn.Name.Name == "TestMain" {
				continue
			}
			var first strings.Builder
			if err := printer.Fprint(&first, fset, fn.Body.List[0]); err != nil {
				t.Fatal(err)
			}
			if first := first.String(); first != "gate.System(t)" && first != "gate.Long(t)" {
				t.Errorf("%s: %s begins with %s, not with gate.System(t) or gate.Long(t)", name, fn.Name.Name, first)
			}
		}
	}
}
