package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// imageName is the image's name when podman or Docker has loaded it.
const imageName = "localhost/softrnic:latest"

// containerImage builds the same files as install, and writes an image of nothing else: an archive
// for podman load and docker load. It has the same bytes for the same commit, tags, Go and gcc.
func containerImage(file string, engine bool) error {
	dir, err := os.MkdirTemp("", "softrnic-image")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := install(filepath.Join(dir, "usr"), engine); err != nil {
		return err
	}
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	version, when := packageVersion(root)
	a := archive{files: map[string][]byte{}, when: when}
	if err := a.image(dir, version); err != nil {
		return err
	}
	var out bytes.Buffer
	if err := a.write(&out); err != nil {
		return err
	}
	return os.WriteFile(file, out.Bytes(), 0o666)
}

// archive is an image in the layout of OCI, with a manifest for releases of Docker before 25.
type archive struct {
	names []string
	files map[string][]byte
	when  time.Time
}

func (a *archive) add(name string, content []byte) {
	a.names = append(a.names, name)
	a.files[name] = content
}

// addJSON adds a file, and returns its content.
func (a *archive) addJSON(name string, v any) error {
	text, err := json.Marshal(v)
	if err == nil {
		a.add(name, text)
	}
	return err
}

// blob adds a file that is named after its content.
func (a *archive) blob(mediaType string, content []byte) v1.Descriptor {
	sum := digest.FromBytes(content)
	a.add(blobName(sum), content)
	return v1.Descriptor{MediaType: mediaType, Digest: sum, Size: int64(len(content))}
}

// jsonBlob is blob for JSON.
func (a *archive) jsonBlob(mediaType string, v any) (v1.Descriptor, error) {
	text, err := json.Marshal(v)
	return a.blob(mediaType, text), err
}

func blobName(sum digest.Digest) string {
	return "blobs/" + sum.Algorithm().String() + "/" + sum.Encoded()
}

// image adds the files of the image of a directory's files.
func (a *archive) image(dir, version string) error {
	layer, err := a.layer(dir)
	if err != nil {
		return err
	}
	var compressed bytes.Buffer
	w := gzip.NewWriter(&compressed)
	if _, err := w.Write(layer); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	when := a.when.UTC()
	config, err := a.jsonBlob(v1.MediaTypeImageConfig, v1.Image{
		Created:  &when,
		Platform: v1.Platform{Architecture: runtime.GOARCH, OS: "linux"},
		Config: v1.ImageConfig{Entrypoint: []string{"/usr/bin/softrnic"}, Env: []string{"PATH=/usr/bin"},
			Labels: map[string]string{v1.AnnotationTitle: "softrnic", v1.AnnotationVersion: version, v1.AnnotationLicenses: "Apache-2.0"}},
		RootFS:  v1.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(layer)}},
		History: []v1.History{{Created: &when, CreatedBy: "go run ./cmd/dropin/build -image"}},
	})
	if err != nil {
		return err
	}
	content := a.blob(v1.MediaTypeImageLayerGzip, compressed.Bytes())
	manifest, err := a.jsonBlob(v1.MediaTypeImageManifest, v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: v1.MediaTypeImageManifest, Config: config, Layers: []v1.Descriptor{content}})
	if err != nil {
		return err
	}
	manifest.Annotations = map[string]string{v1.AnnotationRefName: imageName, "io.containerd.image.name": imageName}
	return errors.Join(
		a.addJSON(v1.ImageIndexFile, v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex,
			Manifests: []v1.Descriptor{manifest}}),
		a.addJSON(v1.ImageLayoutFile, v1.ImageLayout{Version: v1.ImageLayoutVersion}),
		a.addJSON("manifest.json", []any{map[string]any{"Config": blobName(config.Digest), "RepoTags": []string{imageName},
			"Layers": []string{blobName(content.Digest)}}}))
}

// layer returns an archive of a directory's files. They belong to root.
func (a *archive) layer(dir string) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error { // in lexical order
		if err != nil || name == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		link := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if link, err = os.Readlink(name); err != nil {
				return err
			}
		}
		h, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		mode := h.Mode & 0o111 // whatever the umask is
		*h = tar.Header{Typeflag: h.Typeflag, Name: filepath.ToSlash(relative), Linkname: link, Size: h.Size, Mode: 0o644 | mode,
			ModTime: a.when, Format: tar.FormatPAX}
		if d.IsDir() {
			h.Name, h.Mode = h.Name+"/", 0o755
		} else if mode != 0 {
			h.Mode = 0o755
		}
		if err := w.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
			return err
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		_, err = io.Copy(w, f)
		return errors.Join(err, f.Close())
	})
	return out.Bytes(), errors.Join(err, w.Close())
}

// write writes the archive.
func (a *archive) write(out io.Writer) error {
	w := tar.NewWriter(out)
	for _, name := range a.names {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(a.files[name])), Mode: 0o644, ModTime: a.when,
			Format: tar.FormatPAX}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := w.Write(a.files[name]); err != nil {
			return err
		}
	}
	return w.Close()
}
