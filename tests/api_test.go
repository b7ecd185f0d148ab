package tests

import (
	"bytes"
	"go/ast"
	"go/doc"
	"go/format"
	"go/types"
	"path"
	"regexp"
	"strings"
	"testing"
)

// TestPublicTypes: the exported API of a public package uses no type of an internal package. A user
// could not create such a type.
func TestPublicTypes(t *testing.T) {
	for _, s := range load(t, publicPackages(t)...) {
		for _, name := range s.pkg.Scope().Names() {
			obj := s.pkg.Scope().Lookup(name)
			if !obj.Exported() {
				continue
			}
			for _, shown := range exports(obj) {
				if hidden := internalType(shown.Type()); hidden != "" {
					t.Errorf("%s: %s of package %s is of type %s", s.fset.Position(shown.Pos()), shown.Name(), s.dir, hidden)
				}
			}
		}
	}
}

// publicPackages returns the directories of the packages that applications may import.
func publicPackages(t *testing.T) (dirs []string) {
	t.Helper()
	for _, p := range modulePackages(t) {
		dir := strings.TrimPrefix(p.ImportPath, module+"/")
		if _, library := mayImport[p.top()]; library && !internal(dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// internal reports whether a package is not public.
func internal(dir string) bool { return strings.Contains("/"+dir+"/", "/internal/") }

// exports returns an exported object and, for a type, its exported fields and methods.
func exports(obj types.Object) []types.Object {
	all := []types.Object{obj}
	if _, ok := obj.(*types.TypeName); !ok {
		return all
	}
	all = nil
	if named, ok := obj.Type().(*types.Named); ok {
		for m := range named.Methods() {
			all = append(all, m)
		}
	}
	switch u := obj.Type().Underlying().(type) {
	case *types.Struct:
		for f := range u.Fields() {
			all = append(all, f)
		}
	case *types.Interface:
		for m := range u.Methods() {
			all = append(all, m)
		}
	default:
		all = append(all, types.NewVar(obj.Pos(), obj.Pkg(), obj.Name(), u))
	}
	shown := all[:0]
	for _, o := range all {
		if o.Exported() {
			shown = append(shown, o)
		}
	}
	return shown
}

// internalType returns the first type of an internal package of this module that is part of t, or
// "".
func internalType(t types.Type) string {
	switch t := t.(type) {
	case *types.Alias:
		return internalType(types.Unalias(t))
	case *types.Named:
		if p := t.Obj().Pkg(); p != nil && strings.HasPrefix(p.Path(), module+"/") && internal(p.Path()) {
			return t.String()
		}
		for arg := range t.TypeArgs().Types() {
			if s := internalType(arg); s != "" {
				return s
			}
		}
	case *types.Signature:
		for _, vars := range []*types.Tuple{t.Params(), t.Results()} {
			for v := range vars.Variables() {
				if s := internalType(v.Type()); s != "" {
					return s
				}
			}
		}
	case *types.Map:
		return internalType(t.Key()) + internalType(t.Elem())
	case interface{ Elem() types.Type }: // pointers, slices, arrays and channels
		return internalType(t.Elem())
	}
	return ""
}

// notPromised reports whether the API of a package may change in any version. Such a package is
// public only because packages in other directories need it; the last paragraph of its comment says
// so.
func (s *source) notPromised() bool {
	const says = "\n\nThis package is for SoftRNIC's own packages, and its API may change in any version.\n"
	for _, f := range s.files {
		if strings.HasSuffix(f.Doc.Text(), says) {
			return true
		}
	}
	return false
}

// TestDocumentedPackages: the documentation of a public package names no internal package. A
// program cannot import it, and its documentation is not shown.
func TestDocumentedPackages(t *testing.T) {
	names, public := map[string]bool{}, map[string]bool{}
	for _, p := range modulePackages(t) {
		if internal(p.ImportPath) {
			names[path.Base(p.ImportPath)] = true
		} else {
			public[path.Base(p.ImportPath)] = true
		}
	}
	private := []string{`internal/`}
	for name := range names {
		if !public[name] {
			private = append(private, `packages? `+name+`\b`, name+`\.[A-Z]`, name+`/\w+\.go`)
		}
	}
	mention := regexp.MustCompile(`\b(` + strings.Join(private, "|") + `)`)
	for _, s := range load(t, publicPackages(t)...) {
		check := func(name, text string) {
			if found := mention.FindString(text); found != "" {
				t.Errorf("%s: the documentation of %s says %q, and a program cannot import that", s.dir, name, found)
			}
		}
		p, err := doc.NewFromFiles(s.fset, s.files, s.pkg.Path())
		if err != nil {
			t.Fatal(err)
		}
		check("the package", p.Doc)
		declaration := func(name, text string, decl ast.Decl) { // only comments count, also those of fields
			var shown bytes.Buffer
			if err := format.Node(&shown, s.fset, decl); err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(shown.String()) {
				_, said, _ := strings.Cut(line, "//")
				text += said
			}
			check(name, text)
		}
		functions := func(all []*doc.Func) {
			for _, f := range all {
				check(f.Recv+" "+f.Name, f.Doc)
			}
		}
		values := func(all []*doc.Value) {
			for _, v := range all {
				declaration(strings.Join(v.Names, ", "), v.Doc, v.Decl)
			}
		}
		functions(p.Funcs)
		values(p.Consts)
		values(p.Vars)
		for _, typ := range p.Types {
			declaration(typ.Name, typ.Doc, typ.Decl)
			functions(typ.Funcs)
			functions(typ.Methods)
			values(typ.Consts)
			values(typ.Vars)
		}
	}
}
