package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestReproducible: an image has the same bytes whenever it is packed, and other bytes for other
// files.
func TestReproducible(t *testing.T) {
	from := t.TempDir()
	if err := os.MkdirAll(filepath.Join(from, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(from, "bin", "a")
	var images [][]byte
	for i, content := range []string{"x", "x", "y"} {
		if err := os.WriteFile(file, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
		at := time.Unix(int64(1000+i), 0)
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
		archive := filepath.Join(t.TempDir(), "image.tar")
		if err := run(archive, "localhost/a:latest", from, []string{"/bin/a"}); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(archive)
		if err != nil {
			t.Fatal(err)
		}
		images = append(images, b)
	}
	if !bytes.Equal(images[0], images[1]) || bytes.Equal(images[1], images[2]) {
		t.Errorf("the same files give the same image: %v; other files another one: %v", bytes.Equal(images[0], images[1]),
			!bytes.Equal(images[1], images[2]))
	}
}

// TestName: the manifests name this image, and not that of cmd/dropin/build.
func TestName(t *testing.T) {
	name, tag, _ := strings.Cut(imageName, ":")
	for file, want := range map[string]bool{"../plugin/kustomization.yaml": true, "../../../dropin/build/image.go": false} {
		text, err := os.ReadFile(filepath.FromSlash(file))
		if err != nil {
			t.Fatal(err)
		}
		if has := strings.Contains(string(text), name); has != want {
			t.Errorf("%s has %s: %v", file, name, has)
		}
		if want && !strings.Contains(string(text), "newName: "+name+"\n    newTag: "+tag+"\n") {
			t.Errorf("%s does not name %s", file, imageName)
		}
	}
}
