package tests

import (
	"go/ast"
	"go/types"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// optionalOf lists the packages with optional interfaces: those that a value of another interface
// may implement too, and that are found by a type assertion with two results.
var optionalOf = []string{"link", "stack", "verbs", "verbs/rdmacm"}

// TestOptionalInterfaces: ARCHITECTURE.md has a table of the optional interfaces, with the packages
// that implement each and that ask for it. The comments of the interfaces' packages list them too.
func TestOptionalInterfaces(t *testing.T) {
	t.Setenv("GOOS", "linux")
	t.Setenv("GOARCH", "amd64")
	var dirs []string
	for _, p := range modulePackages(t) {
		if p.top() != "tests" {
			dirs = append(dirs, strings.TrimPrefix(p.ImportPath, module+"/"))
		}
	}
	all, have := load(t, dirs...), map[string]*optional{}
	for _, s := range all {
		for name := range s.asserted() {
			if have[name] == nil {
				have[name] = &optional{}
			}
			have[name].asked = append(have[name].asked, s.dir)
		}
	}
	table, listed := optionalTable(t), optionalComments(t)
	for name, o := range table {
		for _, s := range all {
			if h := have[name]; h != nil && s.implements(name, o.base) {
				h.implemented = append(h.implemented, s.dir)
			}
		}
	}
	for name, h := range have {
		o, ok := table[name]
		if !ok {
			t.Errorf("ARCHITECTURE.md does not list %s, which %v ask for by a type assertion", name, h.asked)
		}
		for _, c := range []struct {
			what      string
			code, doc []string
		}{{"implemented by", h.implemented, o.implemented}, {"asked for by", h.asked, o.asked}} {
			slices.Sort(c.code)
			if ok && !slices.Equal(c.code, c.doc) {
				t.Errorf("%s is %s\n%q\nARCHITECTURE.md has\n%q", name, c.what, c.code, c.doc)
			}
		}
		if !listed[name] {
			t.Errorf("the comments of %s do not list it", name)
		}
		delete(table, name)
		delete(listed, name)
	}
	if len(table)+len(listed) > 0 {
		t.Errorf("nothing asks for these, which ARCHITECTURE.md and comments list: %v, %v", table, listed)
	}
}

// ofSimulations is why a wrapper hides link.Queues.
const ofSimulations = "only a simulated adapter has queues, and its host has no wrapper"

// wrapped are the types that wrap a link, or another value that may have optional interfaces, each
// with those that it hides, and why.
var wrapped = map[string]map[string]string{
	"cmd/internal/node.countedLink": {"link.InPlace": "frames that are built in place would not be counted", "link.Queues": ofSimulations},
	"link/capture.Link": {"link.Shared": "messages would pass without a record",
		"link.InPlace": "frames that are built in place would pass without a record", "link.Queues": ofSimulations},
	"link/cable.Link": {"link.Shared": "messages would pass a cable that is pulled",
		"link.InPlace": "frames that are built in place would pass a cable that is pulled", "link.Queues": ofSimulations},
	"link/impair.Link": {"link.Shared": "messages would pass unimpaired",
		"link.InPlace": "frames that are built in place would pass unimpaired", "link.Queues": ofSimulations},
	"link/vlan.Link": {"link.InPlace": "frames that are built in place would have no tag", "link.Queues": "it changes the headers"},
	"link/wireguard.Link": {"link.Carrier": "peers may be reached another way", "link.Shared": "frames are encrypted",
		"link.InPlace": "frames are encrypted", "link.Queues": "frames are encrypted",
		"link.Clocked": "its sockets have the machine's time", "link.Departures": "its hosts are the peers of the tunnel"},
	"cmd/internal/framed.Host":   {"stack.PacketListener": "the machine has the stack's addresses"},
	"cmd/internal/framed.nic":    {"stack.Departures": "the machine's interfaces report none"},
	"cmd/internal/framed.shared": {"stack.Queued": "the machine's sockets have none"},
	"stack/tlshost.Host":         {"stack.PacketListener": "datagrams are not protected by TLS"},
	"stack/tlshost.nic":          {"stack.Departures": "it has streams only, which end with the host"},
	"rdmatransport/internal/rocetransport.gsiPath": {"stack.Backlogged": "management datagrams are paced by CM",
		"stack.Queued": "QP 1 has no window"},
	// No region is made of it.
	"cmd/softrnic/internal/nfs.keptFile": nil,
	// Hosts do not attach to these: they see a part of what passes.
	"cmd/softrnic/internal/conform.recordedLink": nil,
	"stack/netstack.groupLink":                   nil,
	"stack/netstack.sniffableLink":               nil,
}

// TestWrappers: a type that wraps a link, or another value with optional interfaces, has these, or
// a reason to hide them.
func TestWrappers(t *testing.T) {
	t.Setenv("GOOS", "linux")
	t.Setenv("GOARCH", "amd64")
	var dirs []string
	for _, p := range modulePackages(t) {
		if p.top() != "tests" {
			dirs = append(dirs, strings.TrimPrefix(p.ImportPath, module+"/"))
		}
	}
	found, table := map[string]bool{}, optionalTable(t)
	of := map[string][]string{} // the optional interfaces of each base
	for optional, o := range table {
		of[o.base] = append(of[o.base], optional)
	}
	for _, s := range load(t, dirs...) {
		for base, optionals := range of {
			for _, w := range s.wrappers(base) {
				name := s.dir + "." + w.Obj().Name()
				found[name] = true
				hides, known := wrapped[name]
				if !known {
					t.Errorf("%s wraps a %s: list it, with what it hides", name, base)
				}
				for _, optional := range optionals {
					if known && hides == nil {
						continue
					}
					has := types.Implements(types.NewPointer(w), s.interfaceOf(optional))
					if _, hidden := hides[optional]; has == hidden {
						t.Errorf("%s: %s: implemented %v, listed as hidden %v", name, optional, has, hidden)
					}
				}
			}
		}
	}
	for name := range wrapped {
		if !found[name] {
			t.Errorf("%s wraps nothing", name)
		}
	}
}

// wrappers returns the types that implement an interface and have a field of an interface that
// does. Embedded concrete types hide nothing.
func (s *source) wrappers(of string) (found []*types.Named) {
	base := s.interfaceOf(of)
	if base == nil {
		return nil
	}
	for _, name := range s.pkg.Scope().Names() {
		obj, ok := s.pkg.Scope().Lookup(name).(*types.TypeName)
		if !ok {
			continue
		}
		named, _ := obj.Type().(*types.Named)
		fields, ok := obj.Type().Underlying().(*types.Struct)
		if !ok || named == nil || !types.Implements(types.NewPointer(named), base) {
			continue
		}
		for i := range fields.NumFields() {
			if f := fields.Field(i).Type(); types.IsInterface(f) && types.Implements(f, base) {
				found = append(found, named)
				break
			}
		}
	}
	return found
}

// interfaceOf returns an interface, named as in the table, or nil if the package does not know it.
func (s *source) interfaceOf(name string) *types.Interface {
	of, name, _ := strings.Cut(name, ".")
	for _, p := range append(s.pkg.Imports(), s.pkg) {
		if dir := strings.TrimPrefix(p.Path(), module+"/"); of == path.Base(dir) && slices.Contains(optionalOf, dir) {
			if obj := p.Scope().Lookup(name); obj != nil {
				return obj.Type().Underlying().(*types.Interface)
			}
		}
	}
	return nil
}

// optional is an optional interface: the interface whose values may implement it, and the packages
// that do so and that ask for it.
type optional struct {
	base               string
	implemented, asked []string
}

// optionalTable returns the rows of ARCHITECTURE.md.
func optionalTable(t *testing.T) map[string]optional {
	t.Helper()
	b, err := os.ReadFile("../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	rows, quoted := map[string]optional{}, regexp.MustCompile("`([^`]*)`")
	names := func(cell string) (all []string) {
		for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
			all = append(all, m[1])
		}
		return all
	}
	for line := range strings.Lines(string(b)) {
		cells := strings.Split(line, "|")
		if len(cells) == 7 && strings.Contains(cells[1], "`") {
			rows[names(cells[1])[0]] = optional{names(cells[2])[0], names(cells[3]), names(cells[4])}
		}
	}
	return rows
}

// optionalComments returns the interfaces that comments list.
func optionalComments(t *testing.T) map[string]bool {
	t.Helper()
	listed, item := map[string]bool{}, regexp.MustCompile(`(?m)^//   - \[(\w+)\]:`)
	for _, dir := range optionalOf {
		files, _ := filepath.Glob("../" + dir + "/*.go")
		for _, name := range files {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range item.FindAllSubmatch(b, -1) {
				listed[path.Base(dir)+"."+string(m[1])] = true
			}
		}
	}
	return listed
}

// asserted returns the interfaces of optionalOf that the package asks for.
func (s *source) asserted() map[string]bool {
	names := map[string]bool{}
	add := func(of types.Type) {
		named, ok := of.(*types.Named)
		if ok && types.IsInterface(named) && named.Obj().Pkg() != nil &&
			slices.Contains(optionalOf, strings.TrimPrefix(named.Obj().Pkg().Path(), module+"/")) {
			names[named.Obj().Pkg().Name()+"."+named.Obj().Name()] = true
		}
	}
	for _, f := range s.files {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeAssertExpr:
				if results, ok := s.info.TypeOf(n).(*types.Tuple); ok {
					add(results.At(0).Type())
				}
			case *ast.TypeSwitchStmt:
				for _, c := range n.Body.List {
					for _, e := range c.(*ast.CaseClause).List {
						add(s.info.TypeOf(e))
					}
				}
			}
			return true
		})
	}
	return names
}

// implements reports whether a type of the package implements two interfaces, named as in the
// table.
func (s *source) implements(names ...string) bool {
	var interfaces []*types.Interface
	for _, name := range names {
		i := s.interfaceOf(name)
		if i == nil {
			return false
		}
		interfaces = append(interfaces, i)
	}
	for _, name := range s.pkg.Scope().Names() {
		obj, ok := s.pkg.Scope().Lookup(name).(*types.TypeName)
		if !ok || types.IsInterface(obj.Type()) {
			continue
		}
		if !slices.ContainsFunc(interfaces, func(i *types.Interface) bool { return !types.Implements(types.NewPointer(obj.Type()), i) }) {
			return true
		}
	}
	return false
}
