package tests

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/repeat"
)

// TestRepeated checks the list of the tests that CI has repeated: each exists, and none stands
// there twice without a commit that mends it.
func TestRepeated(t *testing.T) {
	list, err := os.ReadFile("../" + repeat.List)
	if err != nil {
		t.Fatal(err)
	}
	all, err := repeat.Parse(string(list))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		files, _ := filepath.Glob(filepath.Join("..", e.Package, "*_test.go"))
		if !slices.ContainsFunc(files, func(name string) bool { return declares(t, name, e.Test) }) {
			t.Errorf("%s: package %s has no %s: rename it, or remove the line", repeat.List, e.Package, e.Test)
		}
	}
}

// declares reports whether a file declares a function.
func declares(t *testing.T, name, function string) bool {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(f.Decls, func(d ast.Decl) bool {
		fn, ok := d.(*ast.FuncDecl)
		return ok && fn.Recv == nil && fn.Name.Name == function
	})
}
