package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestChanges: one place changes in each file of the runtime of this version of Go. Of another
// text, nothing is guessed.
func TestChanges(t *testing.T) {
	goroot, err := goRoot(".", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file             string
		change           func([]byte) ([]byte, error)
		before, after    string
		withoutThisPlace string
	}{
		{"proc.go", withHandlerStack, "gp := malg(4096)", "gp := malg(98304)", "func oneNewExtraM() {\n\tgp := newg()\n}\n"},
		{"cgocall.go", withoutInitLock, "\t\t<-main_init_done\n",
			"\t\tselect {\n\t\tcase <-main_init_done:\n\t\tdefault:\n\t\t\t<-main_init_done\n\t\t}\n", "func cgocallbackg1() {\n}\n"},
	} {
		t.Run(c.file, func(t *testing.T) {
			source, err := os.ReadFile(filepath.Join(goroot, "src", "runtime", c.file))
			if err != nil {
				t.Fatal(err)
			}
			got, err := c.change(source)
			if err != nil {
				t.Fatal(err)
			}
			if want := strings.Replace(string(source), c.before, c.after, 1); string(got) != want || want == string(source) {
				t.Error("another place has changed")
			}
			if _, err := c.change([]byte("package runtime\n\n" + c.withoutThisPlace)); err == nil {
				t.Error("a runtime without the place was accepted")
			}
		})
	}
}

// TestDownloadedToolchain: go build accepts the overlay where Go is in the module cache, as a
// downloaded toolchain is.
func TestDownloadedToolchain(t *testing.T) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	cache := t.TempDir()
	downloaded := filepath.Join(cache, "toolchain")
	if err := os.Symlink(strings.TrimSpace(string(out)), downloaded); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOROOT", downloaded)
	t.Setenv("GOMODCACHE", cache)
	dir := t.TempDir()
	goroot, err := goRoot(".", dir)
	if err != nil {
		t.Fatal(err)
	}
	changes, err := overlay(goroot, dir)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(goroot, "bin", "go"), "list", "-overlay", changes, "runtime")
	cmd.Env = append(os.Environ(), "GOROOT="+goroot)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
