package verbs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestProviderTypes: the files provider*.go have no method of a type that applications use.
func TestProviderTypes(t *testing.T) {
	files, err := filepath.Glob("provider*.go")
	check(t, err)
	ours := []string{"QPHandle", "RegisteredMR", "PostedSend", "PostedRecv"}
	methods := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		check(t, err)
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv == nil {
				continue
			}
			receiver := types.ExprString(fn.Recv.List[0].Type)
			if methods++; !slices.Contains(ours, strings.TrimPrefix(receiver, "*")) {
				t.Errorf("%s: %s is a method of %s, which is not of providers", name, fn.Name.Name, receiver)
			}
		}
	}
	if methods < 10 {
		t.Errorf("%d methods: the test reads the wrong files", methods)
	}
}
