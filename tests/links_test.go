package tests

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestDocLinks: what looks like a link in a doc comment, [Name], [Type.Method] or [package.Name],
// is one. A link may also lead to a field.
func TestDocLinks(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Dir,GoFiles,CgoFiles,Module", "./...")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	all := library{fset: token.NewFileSet(), packages: map[string]*parsed{}}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p parsed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all.packages[p.ImportPath] = &p
	}
	// Both accept all, so that the parser shows what looks like a link.
	links := comment.Parser{LookupPackage: func(name string) (string, bool) { return name, true },
		LookupSym: func(string, string) bool { return true }}
	for _, p := range all.packages {
		if p.Module.Path != module {
			continue
		}
		for _, f := range all.parse(t, p).files {
			ast.Inspect(f, func(n ast.Node) bool {
				text := documentation(n)
				for _, link := range docLinks(links.Parse(text.Text()).Content) {
					if link.Name == "" {
						continue // perhaps a package
					}
					in := p
					if link.ImportPath != "" {
						in = all.packages[p.imported(link.ImportPath)]
					}
					if in == nil || !all.has(t, in, link.Recv, link.Name) {
						t.Errorf("%s: there is no [%s]", all.fset.Position(text.Pos()),
							strings.Join(slices.DeleteFunc([]string{link.ImportPath, link.Recv, link.Name}, func(s string) bool { return s == "" }), "."))
					}
				}
				return true
			})
		}
	}
}

// documentation returns the doc comment of a node, or nil.
func documentation(n ast.Node) *ast.CommentGroup {
	switch n := n.(type) {
	case *ast.File:
		return n.Doc
	case *ast.GenDecl:
		return n.Doc
	case *ast.FuncDecl:
		return n.Doc
	case *ast.TypeSpec:
		return n.Doc
	case *ast.ValueSpec:
		return n.Doc
	case *ast.Field:
		return n.Doc
	}
	return nil
}

// docLinks returns the links of a comment.
func docLinks(blocks []comment.Block) (links []*comment.DocLink) {
	for _, b := range blocks {
		var text []comment.Text
		switch b := b.(type) {
		case *comment.Heading:
			text = b.Text
		case *comment.Paragraph:
			text = b.Text
		case *comment.List:
			for _, item := range b.Items {
				links = append(links, docLinks(item.Content)...)
			}
		}
		for _, part := range text {
			if link, ok := part.(*comment.DocLink); ok {
				links = append(links, link)
			}
		}
	}
	return links
}

// library is the packages of this module and those that it imports.
type library struct {
	fset     *token.FileSet
	packages map[string]*parsed // by import path
}

// parsed is a package, which is parsed when it is needed.
type parsed struct {
	ImportPath, Dir   string
	GoFiles, CgoFiles []string
	Module            struct{ Path string }

	files   []*ast.File
	names   map[string]bool       // declared by the package, or Type.Name of fields and methods
	members map[string][]ast.Expr // by type: the types whose fields and methods it has too
}

// parse parses a package, unless it is parsed.
func (l *library) parse(t *testing.T, p *parsed) *parsed {
	if p.names != nil {
		return p
	}
	p.names, p.members = map[string]bool{}, map[string][]ast.Expr{}
	for _, name := range slices.Concat(p.GoFiles, p.CgoFiles) {
		f, err := parser.ParseFile(l.fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		p.files = append(p.files, f)
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				of := ""
				if d.Recv != nil {
					_, of = typeName(d.Recv.List[0].Type)
					of += "."
				}
				p.names[of+d.Name.Name] = true
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.ValueSpec:
						for _, name := range spec.Names {
							p.names[name.Name] = true
						}
					case *ast.TypeSpec:
						p.names[spec.Name.Name] = true
						p.declare(spec)
					}
				}
			}
		}
	}
	return p
}

// declare records the fields and methods in the declaration of a type.
func (p *parsed) declare(spec *ast.TypeSpec) {
	var fields *ast.FieldList
	switch typ := spec.Type.(type) {
	case *ast.StructType:
		fields = typ.Fields
	case *ast.InterfaceType:
		fields = typ.Methods
	default:
		p.members[spec.Name.Name] = []ast.Expr{typ}
		return
	}
	for _, f := range fields.List {
		for _, name := range f.Names {
			p.names[spec.Name.Name+"."+name.Name] = true
		}
		if len(f.Names) == 0 { // embedded
			_, name := typeName(f.Type)
			p.names[spec.Name.Name+"."+name] = true
			p.members[spec.Name.Name] = append(p.members[spec.Name.Name], f.Type)
		}
	}
}

// typeName returns the name of a type, and of its package if that is another one.
func typeName(typ ast.Expr) (pkg, name string) {
	switch typ := typ.(type) {
	case *ast.StarExpr:
		return typeName(typ.X)
	case *ast.IndexExpr:
		return typeName(typ.X)
	case *ast.IndexListExpr:
		return typeName(typ.X)
	case *ast.SelectorExpr:
		pkg, _ := typ.X.(*ast.Ident)
		return pkg.Name, typ.Sel.Name
	case *ast.Ident:
		return "", typ.Name
	}
	return "", ""
}

// imported returns the import path of a package that a file of p imports under a name, or by a
// path.
func (p *parsed) imported(name string) string {
	for _, f := range p.files {
		if f.Name.Name == name {
			return p.ImportPath
		}
		for _, i := range f.Imports {
			from, _ := strconv.Unquote(i.Path.Value)
			if from == name || i.Name != nil && i.Name.Name == name || i.Name == nil && path.Base(from) == name {
				return from
			}
		}
	}
	return name // of the standard library, or a path
}

// has reports whether a package declares a name, or a type in it has a field or method of that
// name.
func (l *library) has(t *testing.T, p *parsed, of, name string) bool {
	l.parse(t, p)
	if of == "" {
		return p.names[name]
	}
	if p.names[of+"."+name] {
		return true
	}
	return slices.ContainsFunc(p.members[of], func(typ ast.Expr) bool {
		pkg, of := typeName(typ)
		in := p
		if pkg != "" {
			in = l.packages[p.imported(pkg)]
		}
		return in != nil && of != "" && l.has(t, in, of, name)
	})
}
