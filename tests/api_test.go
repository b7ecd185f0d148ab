package tests

import (
	"go/types"
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
