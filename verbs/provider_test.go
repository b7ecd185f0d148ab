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

// TestProviderTypes: the files provider*.go have methods of provider types only.
func TestProviderTypes(t *testing.T) {
	files, err := filepath.Glob("provider*.go")
	check(t, err)
	providerTypes := []string{"QPHandle", "RegisteredMR", "PostedSend", "PostedRecv"}
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
			if methods++; !slices.Contains(providerTypes, strings.TrimPrefix(receiver, "*")) {
				t.Errorf("%s: %s is a method of %s, which is not a provider type", name, fn.Name.Name, receiver)
			}
		}
	}
	if methods < 10 {
		t.Errorf("only %d methods: the test reads the wrong files", methods)
	}
}
