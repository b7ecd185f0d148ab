package tests

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// maySleep lists the functions of tests that sleep once in real time, each with its reason.
var maySleep = map[string]string{
	"rdmatransport.connectDuringFlood":     "a benchmark measures after seconds of a flood; the test is in a bubble",
	"tests/system/chaos.TestHub":           "a hub is away for a random time",
	"tests/system/chaos.killOne":           "a process is killed at a random moment",
	"tests/system/dropin.TestKilledAtOnce": "a process is killed at a random moment",
	"tests/system/interop.cut":             "a link is down for this time",
	"tests/system/netns.outage":            "a link is down, or an address away, for this time",
}

// TestSleeps: a test waits for an event or, in a loop, for a condition. It does not sleep and hope
// that something has happened by then, or that nothing has. In a bubble of testing/synctest time is
// virtual, and everything happens that is due.
func TestSleeps(t *testing.T) {
	packages := map[string]*bubbling{}
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		dir := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(name)), "../")
		if packages[dir] == nil {
			packages[dir] = &bubbling{fset: token.NewFileSet(), virtual: map[string]bool{},
				bubbles: map[string]bool{"synctest.Test": true, "stacktest.Seeds": true}}
		}
		p := packages[dir]
		f, err := parser.ParseFile(p.fset, name, nil, parser.SkipObjectResolution)
		p.files = append(p.files, f)
		return err
	})
	if err != nil || len(packages) < 50 {
		t.Fatalf("%d packages with tests: %v", len(packages), err)
	}
	sleeps := map[string]bool{}
	for dir, p := range packages {
		p.infer()
		p.visit(func(n ast.Node, at place) {
			if name := dir + "." + at.function; isSleep(n) && !at.virtual && !at.loop {
				if sleeps[name] = true; maySleep[name] == "" {
					t.Errorf("%v: %s sleeps and hopes: wait for an event or for a condition", p.fset.Position(n.Pos()), name)
				}
			}
		})
	}
	for name := range maySleep {
		if !sleeps[name] {
			t.Errorf("%s does not sleep: remove it from maySleep", name)
		}
	}
}

// isSleep reports whether a node is a call of time.Sleep, or receives from time.After and then does
// nothing: in a select, it goes on if nothing has happened.
func isSleep(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.CallExpr:
		return nameOf(n.Fun) == "time.Sleep"
	case *ast.CommClause:
		return len(n.Body) == 0 && isAfter(n.Comm)
	case *ast.BlockStmt:
		return slices.ContainsFunc(n.List, isAfter)
	}
	return false
}

// isAfter reports whether a statement is <-time.After(…).
func isAfter(s ast.Stmt) bool {
	e, ok := s.(*ast.ExprStmt)
	if !ok {
		return false
	}
	r, ok := e.X.(*ast.UnaryExpr)
	if !ok || r.Op != token.ARROW {
		return false
	}
	c, ok := r.X.(*ast.CallExpr)
	return ok && nameOf(c.Fun) == "time.After"
}

// nameOf returns the name of a function or method that is called: f, package.f or, for any
// receiver, f.
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.IndexExpr: // of a generic function
		return nameOf(e.X)
	case *ast.SelectorExpr:
		if x, ok := e.X.(*ast.Ident); ok && slices.Contains([]string{"synctest", "stacktest", "time"}, x.Name) {
			return x.Name + "." + e.Sel.Name
		}
		return e.Sel.Name
	}
	return ""
}

// bubbling tells which tests of a directory run in bubbles. It knows functions by their names only.
type bubbling struct {
	fset    *token.FileSet
	files   []*ast.File
	bubbles map[string]bool // functions that call their argument in a bubble
	virtual map[string]bool // functions that only a bubble calls
}

// place says where a node is.
type place struct {
	function      string // that is declared
	inLiteral     bool   // in a function literal of it
	virtual, loop bool
}

// visit calls f for each node of a function.
func (p *bubbling) visit(f func(ast.Node, place)) {
	for _, file := range p.files {
		for _, d := range file.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			at := []place{{function: fn.Name.Name, virtual: p.virtual[fn.Name.Name]}}
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				if n == nil {
					at = at[:len(at)-1]
					return true
				}
				here := at[len(at)-1]
				f(n, here)
				switch n := n.(type) {
				case *ast.FuncLit:
					here.inLiteral, here.loop = true, false
				case *ast.ForStmt, *ast.RangeStmt:
					here.loop = true
				case *ast.CallExpr:
					here.virtual = here.virtual || p.bubbles[nameOf(n.Fun)]
				}
				at = append(at, here)
				return true
			})
		}
	}
}

// infer finds the functions that call their argument in a bubble, and those that only a bubble
// calls: all their uses are in one, or they call synctest.Wait, which panics elsewhere.
func (p *bubbling) infer() {
	for {
		before := len(p.bubbles)
		for _, file := range p.files {
			for _, d := range file.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && takesFunction(fn.Type) && fn.Body != nil {
					ast.Inspect(fn.Body, func(n ast.Node) bool {
						if c, ok := n.(*ast.CallExpr); ok && p.bubbles[nameOf(c.Fun)] {
							p.bubbles[fn.Name.Name] = true
						}
						return true
					})
				}
			}
		}
		if len(p.bubbles) == before {
			break
		}
	}
	for {
		before := len(p.virtual)
		uses, outside := map[string]bool{}, map[string]bool{}
		p.visit(func(n ast.Node, at place) {
			if c, ok := n.(*ast.CallExpr); ok && !at.inLiteral && nameOf(c.Fun) == "synctest.Wait" {
				p.virtual[at.function] = true
			}
			if id, ok := n.(*ast.Ident); ok {
				uses[id.Name] = true
				if !at.virtual {
					outside[id.Name] = true
				}
			}
		})
		for name := range uses {
			if !outside[name] {
				p.virtual[name] = true
			}
		}
		if len(p.virtual) == before {
			return
		}
	}
}

// takesFunction reports whether a function has a parameter that is a function.
func takesFunction(t *ast.FuncType) bool {
	return slices.ContainsFunc(t.Params.List, func(f *ast.Field) bool {
		_, ok := f.Type.(*ast.FuncType)
		return ok
	})
}
