// Package tests has the tests that concern all packages: here, that the layout is as
// ARCHITECTURE.md describes it.
package tests

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/softrnic/softrnic"

// mayImport lists the layers that each layer may import; cmd and tests may import anything. The
// packages of a layer are below the directory of its name and, if applications must not see them,
// below internal.
var mayImport = map[string][]string{
	"idle":          {},
	"link":          {"link", "idle"},
	"stack":         {"stack", "link", "idle"},
	"verbs":         {"verbs", "idle"},
	"rdmatransport": {"rdmatransport", "verbs", "stack", "idle"},
}

// layer returns the layer of a package, given its path from the module's root.
func layer(name string) string {
	top, _, _ := strings.Cut(strings.TrimPrefix(name, "internal/"), "/")
	return top
}

// gVisor may be imported by gVisorUsers only. Tests of the layers in gVisorTesters compare with it.
const gVisor = "gvisor.dev/gvisor"

var (
	gVisorUsers   = []string{"stack/netstack", "internal/link/linktest"}
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

// TestLinkedWithoutGVisor: a program with the kernel's stack, or its own, links no gVisor.
func TestLinkedWithoutGVisor(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "./rdmatransport", "./stack/kernel", "./link/tap", "./link/packet", "./link/pipe",
		"./link/stream", "./link/shm", "./link/impair", "./link/vlan")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if deps := strings.Fields(string(out)); uses(deps, gVisor) {
		t.Error("rdmatransport, the kernel's stack or a link imports gVisor")
	}
}

func TestPackageNames(t *testing.T) {
	for _, p := range modulePackages(t) {
		switch name := path.Base(p.ImportPath); name {
		case "util", "utils", "common", "base", "helper", "helpers", "misc", "shared":
			t.Errorf("%s: %s says nothing of what is in it", p.ImportPath, name)
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
		"link", "stack", "rdmatransport", "verbs", "internal", "cmd", "tests"}
	for _, e := range entries {
		// The binary that the README's go build leaves is not source.
		name := e.Name()
		built := !e.IsDir() && strings.TrimSuffix(name, ".exe") == "softrnic"
		if !built && !strings.HasPrefix(name, ".") && !slices.Contains(known, name) {
			t.Errorf("%s at the top level: there is room for %v only", name, known)
		}
	}
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
