package verbs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// TestForProvidersOnly: what only a provider calls is in the files provider*.go, and each of those functions and methods
// says so at the end of its docstring; nothing elsewhere does.
func TestForProvidersOnly(t *testing.T) {
	files, err := filepath.Glob("*.go")
	check(t, err)
	marked := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		check(t, err)
		forProviders := strings.HasPrefix(name, "provider")
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || !fn.Name.IsExported() || name == "provider_qp.go" { // there, QPHandle itself says so
				continue
			}
			says := strings.HasSuffix(strings.TrimSpace(strings.ReplaceAll(fn.Doc.Text(), "\n", " ")), "For providers only.")
			if says {
				marked++
			}
			if says != forProviders {
				t.Errorf("%s: %s says that it is for providers only: %v, want %v", name, fn.Name.Name, says, forProviders)
			}
		}
	}
	if marked < 10 {
		t.Errorf("%d functions for providers only: the test reads the wrong files", marked)
	}
}
