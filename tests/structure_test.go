package tests

// These tests check how the files of a package depend on each other. A reader can read the files in
// the stated order, since few references run back. The value of each field is decided in one file.

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// source is a type-checked package.
type source struct {
	dir   string // from the module's root
	fset  *token.FileSet
	files []*ast.File
	info  types.Info
	pkg   *types.Package
}

// load type-checks packages of this module without their tests, with the export data of the go
// command.
func load(t *testing.T, dirs ...string) (all []*source) {
	t.Helper()
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Export,Dir,GoFiles,CgoFiles"}
	for _, dir := range dirs {
		args = append(args, "./"+dir)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = ".."
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	type listed struct {
		ImportPath, Export, Dir string
		GoFiles, CgoFiles       []string
	}
	known := map[string]listed{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		known[p.ImportPath] = p
	}
	fset := token.NewFileSet()
	from := importer.ForCompiler(fset, "gc", func(name string) (io.ReadCloser, error) { return os.Open(known[name].Export) })
	for _, dir := range dirs {
		p := known[path.Join(module, dir)]
		s := &source{dir: dir, fset: fset, info: types.Info{
			Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{},
			Selections: map[*ast.SelectorExpr]*types.Selection{}, Types: map[ast.Expr]types.TypeAndValue{},
		}}
		for _, name := range append(p.GoFiles, p.CgoFiles...) {
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			s.files = append(s.files, f)
		}
		cfg := types.Config{Importer: from, FakeImportC: true}
		if len(p.CgoFiles) > 0 {
			cfg.Error = func(error) {} // what follows from C's types, which are not known
		}
		if s.pkg, err = cfg.Check(p.ImportPath, fset, s.files, &s.info); err != nil && cfg.Error == nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

// file returns the name of the file of a position.
func (s *source) file(pos token.Pos) string { return filepath.Base(s.fset.Position(pos).Filename) }

// fileOrder lists the files of packages from the top: each may use declarations of the files below
// it.
var fileOrder = map[string][]string{
	"verbs": {
		"injection.go", "provider_qp.go", "sink.go", "post.go", "recvring.go", "ah.go", "mcast.go", "snapshot.go", "flush.go", "watch.go",
		"provider_objects.go", "deviceex.go", "cqmoderate.go", "regfile_unix.go", "regfile_other.go", "qpmodify.go", "grh.go",
		"poller.go", "flow.go", "cqwait.go", "rereg.go", "mw.go", "mr.go", "resources.go", "xrc.go",
		"qp.go", "staging.go", "complete.go", "placing.go", "jobqueue.go", "backend.go",
		"compcntr.go", "srq.go", "compchannel.go", "statetable.go", "mapped_linux.go", "mapped_other.go",
		"cqstall.go", "cq.go", "cqprogress.go", "cqparams.go", "device.go", "provider.go", "queue.go", "wr.go", "opcode.go", "async.go",
		"qpattr.go",
		"gid.go", "guid.go",
		"injector.go", "latency.go", "wc.go", "access.go", "pd.go", "errors.go", "attr.go", "clock.go",
	},
	"rdmatransport/internal/iwarptransport": {
		"terminate.go", "rtr.go", "direct.go", "placed.go", "responses.go", "qp.go", "receive.go",
		"placement.go", "requests.go", "end.go", "pairing.go", "listen.go", "disconnect.go", "output.go",
		"connect.go", "trace.go", "wake.go", "send.go", "drain.go", "conn.go", "engine.go", "sequencer.go",
		"state.go", "cursor.go", "params.go", "segment.go", "reads.go", "phase.go", "counters.go",
	},
	"rdmatransport/internal/rocetransport": {
		"hostleft.go", "multicast.go", "receive.go", "trimmed.go", "completer.go", "flush.go", "deferred.go", "qp.go", "placed.go",
		"direct.go", "senddue.go", "uc.go", "ud.go", "delayed.go", "requester.go", "bydelay.go", "gsi.go",
		"xrc.go", "response.go", "identification.go", "timer.go", "responder.go", "backpressure.go", "outcome.go",
		"trace.go", "local.go", "config.go", "notification.go", "packet.go", "path.go", "pacing.go", "params.go",
		"engine.go", "dcqcn.go", "opcodes.go", "counters.go",
	},
	"rdmatransport/internal/rocetransport/send": {
		"next.go", "retransmit.go", "acknowledge.go", "trimmed.go", "selective.go", "state.go", "trace.go", "mode.go", "window.go", "delay.go",
		"basertt.go", "congestion.go",
		"ackfreq.go", "loss.go", "scoreboard.go", "queue.go", "flight.go", "credits.go", "reads.go", "rtt.go", "rttsamples.go", "alarm.go",
		"lateness.go", "probe.go", "retry.go", "cork.go", "params.go",
	},
	"rdmatransport/internal/rocetransport/receive": {
		"request.go", "respond.go", "state.go", "verdict.go", "rnr.go", "early.go", "trimmed.go", "store.go", "expected.go", "acks.go",
		"history.go", "pending.go", "pace.go", "params.go",
	},
}

// back is the share of references between files that may run back up.
const back = 0.20

// References between two files are counted once.
func TestFileOrder(t *testing.T) {
	for _, s := range load(t, slices.Sorted(maps.Keys(fileOrder))...) {
		order := fileOrder[s.dir]
		type edge struct{ from, to string }
		edges := map[edge][]string{}
		for id, obj := range s.info.Uses {
			if obj.Pkg() != s.pkg || !declared(obj) {
				continue
			}
			e := edge{s.file(id.Pos()), s.file(obj.Pos())}
			if e.from != e.to && !slices.Contains(edges[e], obj.Name()) {
				edges[e] = append(edges[e], obj.Name())
			}
		}
		up := 0
		for e, names := range edges {
			i, j := slices.Index(order, e.from), slices.Index(order, e.to)
			if i < 0 || j < 0 {
				t.Errorf("%s: %s or %s has no place in the order of files", s.dir, e.from, e.to)
			}
			if i > j {
				up++
				t.Logf("%s: %s uses %s of %s, above it", s.dir, e.from, strings.Join(names, ", "), e.to)
			}
		}
		t.Logf("%s: %d of %d references between files run back up", s.dir, up, len(edges))
		if float64(up) > back*float64(len(edges)) {
			t.Errorf("%s: %d of %d references between files run back up, more than %.0f %%", s.dir, up, len(edges), 100*back)
		}
	}
}

// declared reports whether an object is a package-level object, a field or a method.
func declared(obj types.Object) bool {
	if v, ok := obj.(*types.Var); ok && v.IsField() {
		return true
	}
	if f, ok := obj.(*types.Func); ok {
		return f.Signature().Recv() != nil || f.Parent() == f.Pkg().Scope()
	}
	return obj.Parent() == obj.Pkg().Scope()
}

// A RoCE QP is unlocked by unlockOnly and sendDueAndUnlock. A plain Unlock would not say whether
// due packets are sent first.
func TestUnlock(t *testing.T) {
	const dir, name = "rdmatransport/internal/rocetransport", "unlockOnly"
	s := load(t, dir)[0]
	found := false
	for _, f := range s.files {
		for _, d := range f.Decls {
			ast.Inspect(d, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				if !ok || sel.Sel.Name != "Unlock" || !strings.HasSuffix(s.info.TypeOf(sel.X).String(), "verbs.QPHandle") {
					return true
				}
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Name.Name == name {
					found = true
				} else {
					t.Errorf("%v: call unlockOnly or sendDueAndUnlock", s.fset.Position(sel.Pos()))
				}
				return true
			})
		}
	}
	if !found {
		t.Errorf("%s has no %s", dir, name)
	}
}

// stateOf lists the packages whose state has owners, and the type that contains all of it.
var stateOf = map[string]string{
	"rdmatransport/internal/rocetransport/send": "State", "rdmatransport/internal/rocetransport/receive": "State",
	"rdmatransport/internal/iwarptransport": "sendState",
}

// A field of the sending or receiving state is written only in the file that declares it.
func TestFieldsHaveOwners(t *testing.T) {
	for _, s := range load(t, slices.Sorted(maps.Keys(stateOf))...) {
		owned := map[*types.TypeName]bool{}
		s.own(s.pkg.Scope().Lookup(stateOf[s.dir]).Type(), owned)
		if len(owned) < 10 {
			t.Fatalf("%s: only %d types hang from %s", s.dir, len(owned), stateOf[s.dir])
		}
		for _, f := range s.files {
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.AssignStmt:
					for _, to := range n.Lhs {
						s.checkWrite(t, to, owned)
					}
				case *ast.IncDecStmt:
					s.checkWrite(t, n.X, owned)
				case *ast.UnaryExpr: // the address of a field whose type has no owner
					if sel, ok := n.X.(*ast.SelectorExpr); ok && n.Op == token.AND && s.owner(s.info.TypeOf(sel), owned) == nil {
						s.checkWrite(t, n.X, owned)
					}
				case *ast.CompositeLit:
					if o := s.owner(s.info.TypeOf(n), owned); o != nil && len(n.Elts) > 0 && s.file(o.Pos()) != s.file(n.Pos()) {
						t.Errorf("%v: a %s is made outside %s", s.fset.Position(n.Pos()), o.Name(), s.file(o.Pos()))
					}
				}
				return true
			})
		}
	}
}

// own collects the struct types of the package that are part of a type.
func (s *source) own(of types.Type, owned map[*types.TypeName]bool) {
	switch of := of.(type) {
	case *types.Named:
		if st, ok := of.Underlying().(*types.Struct); ok && of.Obj().Pkg() == s.pkg && !owned[of.Obj()] {
			owned[of.Obj()] = true
			for f := range st.Fields() {
				s.own(f.Type(), owned)
			}
		}
	case *types.Pointer:
		s.own(of.Elem(), owned)
	case *types.Slice:
		s.own(of.Elem(), owned)
	case *types.Array:
		s.own(of.Elem(), owned)
	}
}

// owner returns the type's name if it is an owned type, or nil.
func (s *source) owner(of types.Type, owned map[*types.TypeName]bool) *types.TypeName {
	if named, ok := of.(*types.Named); ok && owned[named.Obj()] {
		return named.Obj()
	}
	return nil
}

// checkWrite reports a write outside the file that declares the target: a field, or a whole struct
// that is not a local variable.
func (s *source) checkWrite(t *testing.T, to ast.Expr, owned map[*types.TypeName]bool) {
	t.Helper()
	here := s.file(to.Pos())
	for {
		switch e := to.(type) {
		case *ast.ParenExpr:
			to = e.X
			continue
		case *ast.IndexExpr:
			to = e.X
			continue
		case *ast.StarExpr:
			if o := s.owner(s.info.TypeOf(e), owned); o != nil && s.file(o.Pos()) != here {
				t.Errorf("%v: a %s is written outside %s", s.fset.Position(e.Pos()), o.Name(), s.file(o.Pos()))
			}
		case *ast.SelectorExpr:
			sel := s.info.Selections[e]
			if sel == nil {
				return
			}
			if v, ok := sel.Obj().(*types.Var); ok && s.owner(deref(sel.Recv()), owned) != nil && s.file(v.Pos()) != here {
				t.Errorf("%v: field %s is written outside %s", s.fset.Position(e.Pos()), v.Name(), s.file(v.Pos()))
			}
		}
		return
	}
}

func deref(t types.Type) types.Type {
	if p, ok := t.(*types.Pointer); ok {
		return p.Elem()
	}
	return t
}
