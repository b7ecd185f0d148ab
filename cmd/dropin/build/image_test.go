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
	"regexp"
	"slices"
	"strings"
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
		a := newImage("localhost/softrnic:latest", "", "")
		a.when, a.version = when, "0~git1"
		if err := errors.Join(a.pack(dir), a.write(&images[i])); err != nil {
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
	if env := image.Config.Env; !slices.Equal(env, []string{"PATH=/usr/bin:/usr/sbin:/usr/bin:/sbin:/bin"}) {
		t.Errorf("the environment is %q", env)
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

// TestDirectory: the image of a directory that is not built here has its files as they are, and its
// own entry point.
func TestDirectory(t *testing.T) {
	from, file := t.TempDir(), filepath.Join(t.TempDir(), "image.tar")
	if err := errors.Join(os.Mkdir(filepath.Join(from, "tmp"), 0o755), os.Chmod(filepath.Join(from, "tmp"), 0o777|os.ModeSticky),
		os.WriteFile(filepath.Join(from, "secret"), []byte("a text"), 0o600),
		containerImage(file, from, newImage("localhost/other:1", "", "/bin/other -v"), false)); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, contents := entries(t, f)
	described := parse[v1.Index](t, contents[v1.ImageIndexFile]).Manifests[0]
	manifest := parse[v1.Manifest](t, follow(t, contents, described))
	image := parse[v1.Image](t, follow(t, contents, manifest.Config))
	if described.Annotations["io.containerd.image.name"] != "localhost/other:1" ||
		!slices.Equal(image.Config.Entrypoint, []string{"/bin/other", "-v"}) {
		t.Errorf("the image is %+v, %+v", described, image)
	}
	layer, err := gzip.NewReader(bytes.NewReader(follow(t, contents, manifest.Layers[0])))
	if err != nil {
		t.Fatal(err)
	}
	headers, _ := entries(t, layer)
	if tmp, secret := headers["tmp/"], headers["secret"]; tmp == nil || secret == nil || tmp.Mode != 0o1777 || secret.Mode != 0o600 {
		t.Errorf("the layer has %+v and %+v", tmp, secret)
	}
}

// TestKubernetes: the commands on Kubernetes' page make the images that the manifests name.
func TestKubernetes(t *testing.T) {
	page, err := os.ReadFile("../../softrnic/kubernetes/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"plugin", "dra"} {
		text, err := os.ReadFile(filepath.Join("../../softrnic/kubernetes", dir, "kustomization.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		name := regexp.MustCompile(`newName: (\S+)\s+newTag: (\S+)`).FindSubmatch(text)
		if name == nil || !strings.Contains(string(page), " -name "+string(name[1])+":"+string(name[2])) {
			t.Errorf("%s names the image %q, which no command on the page makes", dir, name)
		}
	}
}
