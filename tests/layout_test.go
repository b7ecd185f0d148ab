// Package tests has the tests that concern all packages: here, that the layout is as
// ARCHITECTURE.md describes it.
package tests

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/scanner"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/mod/semver"
)

const module = "github.com/softrnic/softrnic"

// mayImport lists the layers that each layer may import; cmd and tests may import anything. The
// packages of a layer are below the directory of its name.
var mayImport = map[string][]string{
	"link":          {"link"},
	"stack":         {"stack", "link"},
	"verbs":         {"verbs"},
	"rdmatransport": {"rdmatransport", "verbs", "stack"},
}

// layer returns the layer of a package, given its path from the module's root.
func layer(name string) string {
	top, _, _ := strings.Cut(name, "/")
	return top
}

// gVisor may be imported by gVisorUsers only. Tests of the layers in gVisorTesters compare with it.
const gVisor = "gvisor.dev/gvisor"

var (
	gVisorUsers   = []string{"stack/netstack"}
	gVisorTesters = []string{"stack", "link", "tests"}
)

func uses(imports []string, lib string) bool {
	return slices.ContainsFunc(imports, func(i string) bool { return i == lib || strings.HasPrefix(i, lib+"/") })
}

type pkg struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

func (p *pkg) top() string {
	return layer(strings.TrimPrefix(p.ImportPath, module+"/"))
}

func modulePackages(t *testing.T) (all []pkg) {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = ".."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v: %s", err, stderr.String())
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func TestImports(t *testing.T) {
	for _, p := range modulePackages(t) {
		allowed, limited := mayImport[p.top()]
		for _, i := range p.Imports { // tests may also import packages for a peer
			if own, ok := strings.CutPrefix(i, module+"/"); ok && limited {
				if !slices.Contains(allowed, layer(own)) {
					t.Errorf("%s imports %s: packages in %s may import %v", p.ImportPath, i, p.top(), allowed)
				}
			}
		}
		if own := strings.TrimPrefix(p.ImportPath, module+"/"); uses(p.Imports, gVisor) && !slices.Contains(gVisorUsers, own) {
			t.Errorf("%s imports gVisor: only %v may", p.ImportPath, gVisorUsers)
		}
		if uses(slices.Concat(p.TestImports, p.XTestImports), gVisor) && !slices.Contains(gVisorTesters, p.top()) {
			t.Errorf("tests of %s import gVisor: only those below %v may", p.ImportPath, gVisorTesters)
		}
	}
}

// modules are those that the parts of the library may link, besides the Go distribution's own
// packages and this module. They are for linux, which has most.
var modules = []struct {
	packages []string
	allowed  []string
}{
	{[]string{"link/pipe", "link/stream", "link/shm", "link/impair", "link/cable", "link/vlan", "link/linktest", "verbs", "verbs/rdmacm",
		"verbs/ulp/rsocket", "verbs/ulp/nvme", "verbs/ulp/rpcrdma", "rdmatransport", "rdmatransport/trace", "rdmatransport/fault",
		"rdmatransport/wire",
		"rdmatransport/mad", "rdmatransport/mpa", "rdmatransport/ddp", "rdmatransport/rdmap"}, []string{"golang.org/x/sys"}},
	{[]string{"verbs/ulp/nvme/auth", "verbs/ulp/nvme/host", "verbs/ulp/nvme/target"}, []string{"golang.org/x/sys", "filippo.io/bigmod"}},
	{[]string{"stack/kernel", "link/packet"}, []string{"golang.org/x/sys", "github.com/vishvananda/netlink", "github.com/vishvananda/netns"}},
	{[]string{"link/tap"}, []string{"golang.org/x/sys", "github.com/vishvananda/netlink", "github.com/vishvananda/netns",
		"github.com/songgao/water"}},
	{[]string{"link/wireguard"}, []string{"golang.org/x/sys", "golang.org/x/net", "golang.org/x/crypto", "golang.zx2c4.com/wireguard",
		"github.com/vishvananda/netlink", "github.com/vishvananda/netns"}},
	{[]string{"link/capture"}, []string{"github.com/gopacket/gopacket", "golang.org/x/net", "golang.org/x/sys"}},
	{[]string{"stack/netstack"}, []string{"golang.org/x/sys", gVisor, "github.com/google/btree", "golang.org/x/exp", "golang.org/x/time"}},
}

// TestLinkedModules checks that a program links no other module than its links and its stack need.
func TestLinkedModules(t *testing.T) {
	for _, c := range modules {
		for _, p := range c.packages {
			cmd := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "./"+p)
			cmd.Dir = ".."
			cmd.Env = append(os.Environ(), "GOOS=linux")
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			linked := strings.Fields(string(out))
			slices.Sort(linked)
			for _, m := range slices.Compact(linked) {
				if m != module && !slices.Contains(c.allowed, m) {
					t.Errorf("%s links module %s; only %v are allowed", p, m, c.allowed)
				}
			}
		}
	}
}

// TestNestedModules checks what the go command would refuse: a module of its own needs no older
// version of a module than this module does. The check uses no network.
func TestNestedModules(t *testing.T) {
	requirements := func(dir string) map[string]string {
		cmd := exec.Command("go", "mod", "edit", "-json")
		cmd.Dir = dir
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		var mod struct {
			Require []struct{ Path, Version string }
		}
		if err := json.Unmarshal(out, &mod); err != nil {
			t.Fatal(err)
		}
		versions := map[string]string{}
		for _, r := range mod.Require {
			versions[r.Path] = r.Version
		}
		return versions
	}
	own := requirements("..")
	for _, dir := range []string{"cmd/softrnic/kubernetes/softrnic-dra", "tests/fabric/replicated"} {
		nested := requirements("../" + dir)
		for path, version := range own {
			if v, both := nested[path]; both && semver.Compare(v, version) < 0 {
				t.Errorf("%s requires %s %s, and this module %s: run go mod tidy there", dir, path, v, version)
			}
		}
	}
}

// TestEngineModules: the engine of the drop-in libraries links what a device needs. Each program
// that uses the libraries loads it, and initializes all of its packages. A parser of command lines
// and a client of Prometheus took a third of it.
func TestEngineModules(t *testing.T) {
	engine := "cmd/dropin/libsoftrnic"
	var allowed []string // by some link, stack or transport
	for _, m := range modules {
		allowed = append(allowed, m.allowed...)
	}
	cmd := exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}} {{with .Module}}{{.Path}}{{end}}", "./"+engine)
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=1")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for line := range strings.Lines(string(out)) {
		name, of, _ := strings.Cut(strings.TrimSpace(line), " ")
		found = found || name == module+"/"+engine
		if of != "" && of != module && !slices.Contains(allowed, of) {
			t.Errorf("%s links %s of module %s; only %v are allowed", engine, name, of, allowed)
		}
		if slices.Contains([]string{"net/http", "text/template", "encoding/xml", "encoding/gob", "expvar"}, name) {
			t.Errorf("%s links %s", engine, name)
		}
	}
	if !found {
		t.Errorf("%s is not in the list of its packages", engine)
	}
}

// TestCommandModules: the command softrnic links no client of Kubernetes' API, which is larger than
// all of the rest. The device plugin needs none, and softrnic-dra is a module of its own.
func TestCommandModules(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "./cmd/softrnic")
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "GOOS=linux")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for m := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(m, "k8s.io/") && m != "k8s.io/kubelet" {
			t.Fatalf("softrnic links module %s", m)
		}
	}
}

func TestPackageNames(t *testing.T) {
	for _, p := range modulePackages(t) {
		switch name := path.Base(p.ImportPath); name {
		case "util", "utils", "common", "base", "helper", "helpers", "misc", "shared":
			t.Errorf("%s: the name %s does not describe the content", p.ImportPath, name)
		}
	}
}

func TestTopLevel(t *testing.T) {
	entries, err := os.ReadDir("..")
	if err != nil {
		t.Fatal(err)
	}
	known := []string{"go.mod", "go.sum", "README.md", "LICENSE", "ARCHITECTURE.md", "CONTRIBUTING.md", "PROTOCOL.md", "SECURITY.md",
		"CHANGELOG.md",
		"link", "stack", "rdmatransport", "verbs", "cmd", "tests", "findings"}
	for _, e := range entries {
		// The binary that the README's go build leaves is not source.
		name := e.Name()
		built := !e.IsDir() && strings.TrimSuffix(name, ".exe") == "softrnic"
		if !built && !strings.HasPrefix(name, ".") && !slices.Contains(known, name) {
			t.Errorf("%s at the top level: there is room for %v only", name, known)
		}
	}
	findings, err := os.ReadDir("../findings")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range findings {
		if e.IsDir() || e.Name() != "README.md" && path.Ext(e.Name()) != ".sh" {
			t.Errorf("findings/%s: there is room for README.md and scripts only", e.Name())
		}
	}
}

const (
	maxCode    = 140 // characters of a line of code
	maxComment = 100 // of a comment with a line of its own
)

// TestLineLengths: comments have at most 100 columns, and lines of code 140. Each character counts
// as one, also a tab. Generated files are exempt, and so are lines with a raw string. Preformatted
// lines of a comment may be as long as code.
func TestLineLengths(t *testing.T) {
	out, err := exec.Command("git", "-C", "..", "ls-files").Output()
	if err != nil {
		t.Skip("this is no working tree of git")
	}
	for name := range strings.Lines(string(out)) {
		name = strings.TrimSpace(name)
		b, err := os.ReadFile(filepath.Join("..", name))
		if err != nil || generated.Match(b) {
			continue // removed, or generated
		}
		var lines []sourceLine
		switch path.Ext(name) {
		case ".go":
			lines = goLines(b)
		case ".c", ".h":
			lines = otherLines(b, "//")
		case ".sh":
			lines = otherLines(b, "#")
		}
		if name == ".ci/run" {
			lines = otherLines(b, "#")
		}
		for i, l := range lines {
			most := maxCode
			if l.comment {
				most = maxComment
			}
			if n := utf8.RuneCountInString(l.text); n > most && !l.raw {
				t.Errorf("%s:%d has %d columns, more than %d", name, i+1, n, most)
			}
		}
	}
}

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// sourceLine is a line of a source file.
type sourceLine struct {
	text    string
	comment bool // it has nothing but a comment that is not preformatted
	raw     bool // a part of a raw string is on it
}

// goLines returns the lines of a Go file.
func goLines(b []byte) []sourceLine {
	lines := otherLines(b, "//")
	fset := token.NewFileSet()
	file := fset.AddFile("", -1, len(b))
	var s scanner.Scanner
	s.Init(file, b, nil, 0)
	for {
		pos, tok, text := s.Scan()
		if tok == token.EOF {
			return lines
		}
		if tok == token.STRING && text[0] == '`' {
			first := fset.Position(pos).Line
			for i := range strings.Count(text, "\n") + 1 {
				lines[first-1+i].raw = true
			}
		}
	}
}

// otherLines returns the lines of a file whose comments begin with a mark.
func otherLines(b []byte, mark string) (lines []sourceLine) {
	for text := range strings.SplitSeq(string(b), "\n") {
		comment, is := strings.CutPrefix(strings.TrimSpace(text), mark)
		preformatted := strings.HasPrefix(comment, "\t") || strings.HasPrefix(comment, "   ") || strings.HasPrefix(comment, "go:")
		lines = append(lines, sourceLine{text: text, comment: is && !preformatted})
	}
	return lines
}

// A longer file holds two things. Tests may be longer.
const maxLines = 600

func TestFileLengths(t *testing.T) {
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			return err
		}
		b, err := os.ReadFile(name)
		if n := bytes.Count(b, []byte("\n")); n > maxLines {
			t.Errorf("%s has %d lines, more than %d: it holds two things", name, n, maxLines)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
