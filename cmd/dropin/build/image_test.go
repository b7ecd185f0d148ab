package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// entries reads an archive.
func entries(t *testing.T, archive io.Reader) (headers map[string]*tar.Header, contents map[string][]byte) {
	t.Helper()
	headers, contents = map[string]*tar.Header{}, map[string][]byte{}
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return headers, contents
		}
		if err != nil {
			t.Fatal(err)
		}
		if contents[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
		headers[h.Name] = h
	}
}

// follow returns the content of a descriptor.
func follow(t *testing.T, contents map[string][]byte, d v1.Descriptor) []byte {
	t.Helper()
	text := contents[blobName(d.Digest)]
	if digest.FromBytes(text) != d.Digest || int64(len(text)) != d.Size {
		t.Fatalf("%s of %d bytes is %d bytes", d.Digest, d.Size, len(text))
	}
	return text
}

func parse[T any](t *testing.T, text []byte) (v T) {
	t.Helper()
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

// TestImage: an image has the files of a directory, as root's, and the same bytes whenever they
// were written.
func TestImage(t *testing.T) {
	when := time.Unix(1e9, 0)
	var images [2]bytes.Buffer
	for i, mode := range []os.FileMode{0o700, 0o755} {
		dir := t.TempDir()
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "usr/bin"), 0o755), os.Mkdir(filepath.Join(dir, "usr/lib"), mode),
			os.WriteFile(filepath.Join(dir, "usr/bin/softrnic"), []byte("a program"), mode),
			os.WriteFile(filepath.Join(dir, "usr/lib/text"), []byte("a text"), mode&0o666),
			os.Symlink("text", filepath.Join(dir, "usr/lib/link")),
			os.Chtimes(filepath.Join(dir, "usr/lib/text"), time.Time{}, when.Add(time.Duration(i)*time.Hour))); err != nil {
			t.Fatal(err)
		}
		a := archive{files: map[string][]byte{}, when: when}
		if err := errors.Join(a.image(dir, "0~git1"), a.write(&images[i])); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(images[0].Bytes(), images[1].Bytes()) {
		t.Error("the same files make different images")
	}
	_, contents := entries(t, &images[0])
	index := parse[v1.Index](t, contents[v1.ImageIndexFile])
	manifest := parse[v1.Manifest](t, follow(t, contents, index.Manifests[0]))
	image := parse[v1.Image](t, follow(t, contents, manifest.Config))
	if !slices.Equal(image.Config.Entrypoint, []string{"/usr/bin/softrnic"}) || image.OS != "linux" {
		t.Errorf("the image is %+v", image)
	}
	layer, err := gzip.NewReader(bytes.NewReader(follow(t, contents, manifest.Layers[0])))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(layer)
	if err != nil || digest.FromBytes(plain) != image.RootFS.DiffIDs[0] {
		t.Errorf("the layer is not the one that the image names: %v", err)
	}
	headers, files := entries(t, bytes.NewReader(plain))
	if len(files) != 6 || string(files["usr/bin/softrnic"]) != "a program" || headers["usr/lib/link"].Linkname != "text" {
		t.Errorf("the layer has %q", files)
	}
	for name, mode := range map[string]int64{"usr/": 0o755, "usr/bin/softrnic": 0o755, "usr/lib/": 0o755, "usr/lib/text": 0o644} {
		if h := headers[name]; h == nil || h.Mode != mode || h.Uid != 0 || !h.ModTime.Equal(when) {
			t.Errorf("%s: %+v, want mode %o", name, h, mode)
		}
	}
}
