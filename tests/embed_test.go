package tests

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// TestEmbed checks that a module outside of this one compiles and runs the program of
// testdata/embed, with no other modules than those that this one has.
func TestEmbed(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the loopback interface has more than one address on Linux only")
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	read := func(name string) []byte {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for name, b := range map[string][]byte{
		"main.go": read("testdata/embed/main.go"),
		"go.sum":  read("../go.sum"),
		// All requirements are listed, so that no other go.mod is needed, which may not be in the cache.
		"go.mod": append(bytes.Replace(read("../go.mod"), []byte("module "+module), []byte("module example.com/embed"), 1),
			fmt.Sprintf("\nrequire %s v0.0.0\n\nreplace %[1]s => %q\n", module, root)...),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for _, command := range []string{"vet", "run"} {
		cmd := exec.Command("go", command, ".")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("go %s: %v\n%s", command, err, out)
		}
		const want = "device 10.0.0.1\nclient reads \"hello\"\nserver has \"hello\"\nhttp over RDMA\non lo\n"
		if command == "run" && string(out) != want {
			t.Errorf("the program prints\n%s\nwant\n%s", out, want)
		}
	}
}
