package tests

import (
	"flag"
	"fmt"
	"go/types"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/api.txt anew")

const apiFile = "testdata/api.txt"

// TestAPI checks that the exported declarations of the public packages, on linux/amd64, are those
// of testdata/api.txt. A line is a declaration, or an exported field or method of one. A package
// that is not promised has one line.
func TestAPI(t *testing.T) {
	t.Setenv("GOOS", "linux")
	t.Setenv("GOARCH", "amd64")
	var have []string
	for _, s := range load(t, publicPackages(t)...) {
		if s.notPromised() {
			have = append(have, s.dir+": not promised")
		} else {
			have = append(have, declarations(s.dir, s.pkg)...)
		}
	}
	slices.Sort(have)
	if *update {
		if err := os.WriteFile(apiFile, []byte(strings.Join(have, "\n")+"\n"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(apiFile)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSpace(string(b)), "\n")
	var changes []string
	for _, line := range want {
		if _, ok := slices.BinarySearch(have, line); !ok {
			changes = append(changes, "- "+line)
		}
	}
	for _, line := range have {
		if !slices.Contains(want, line) {
			changes = append(changes, "+ "+line)
		}
	}
	if len(changes) > 0 {
		t.Errorf("the exported API differs from %s:\n%s\nIf that is intended: go test ./tests -run '^TestAPI$' -update, "+
			"and a line in CHANGELOG.md", apiFile, strings.Join(changes, "\n"))
	}
}

// declarations returns the lines of a package.
func declarations(dir string, pkg *types.Package) (lines []string) {
	qualifier := func(p *types.Package) string {
		if p == pkg {
			return ""
		}
		return strings.TrimPrefix(p.Path(), module+"/")
	}
	add := func(format string, args ...any) { lines = append(lines, dir+": "+fmt.Sprintf(format, args...)) }
	text := func(t types.Type) string { return types.TypeString(t, qualifier) }
	signature := func(f types.Object) string { return strings.TrimPrefix(text(f.Type()), "func") }
	for _, name := range pkg.Scope().Names() {
		obj := pkg.Scope().Lookup(name)
		if !obj.Exported() {
			continue
		}
		switch obj := obj.(type) {
		case *types.Const:
			add("const %s %s = %s", name, text(obj.Type()), obj.Val().ExactString())
		case *types.Var:
			add("var %s %s", name, text(obj.Type()))
		case *types.Func:
			add("func %s%s", name, signature(obj))
		case *types.TypeName:
			if obj.IsAlias() {
				add("type %s = %s", name, text(types.Unalias(obj.Type())))
				continue
			}
			kind := text(obj.Type().Underlying())
			switch obj.Type().Underlying().(type) {
			case *types.Struct:
				kind = "struct"
			case *types.Interface:
				kind = "interface"
			}
			params := ""
			if named, ok := obj.Type().(*types.Named); ok && named.TypeParams().Len() > 0 {
				params = strings.TrimPrefix(text(obj.Type()), name)
			}
			add("type %s%s %s", name, params, kind)
			members(obj, add, text, signature)
		}
	}
	return lines
}

// members adds the exported fields and methods of a type, also those of embedded fields.
func members(obj *types.TypeName, add func(string, ...any), text func(types.Type) string, signature func(types.Object) string) {
	switch u := obj.Type().Underlying().(type) {
	case *types.Struct:
		for f := range u.Fields() {
			if f.Exported() {
				add("type %s struct, %s %s", obj.Name(), f.Name(), text(f.Type()))
			}
		}
	case *types.Interface:
		for i := range u.NumMethods() {
			if m := u.Method(i); m.Exported() {
				add("type %s interface, %s%s", obj.Name(), m.Name(), signature(m))
			}
		}
		return
	}
	own := types.NewMethodSet(obj.Type())
	for m := range types.NewMethodSet(types.NewPointer(obj.Type())).Methods() {
		if !m.Obj().Exported() {
			continue
		}
		receiver := "*" + obj.Name()
		if own.Lookup(obj.Pkg(), m.Obj().Name()) != nil {
			receiver = obj.Name()
		}
		add("method (%s) %s%s", receiver, m.Obj().Name(), signature(m.Obj()))
	}
}
