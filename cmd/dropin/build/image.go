package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// image is an image of one layer, to be written in the layout of OCI.
type image struct {
	name  string // by which the image is known when it has been loaded
	entry []string
	when  time.Time // of all files

	// Of an image that is built here. Its files have modes that do not depend on the umask.
	prefix, version string

	names []string // of the archive's files
	files map[string][]byte
}

func newImage(name, prefix, entry string) *image {
	i := &image{name: name, prefix: cmp.Or(prefix, "/usr"), entry: strings.Fields(entry), files: map[string][]byte{}}
	if len(i.entry) == 0 {
		i.entry = []string{path.Join("/", i.prefix, "bin/softrnic")}
	}
	return i
}

// containerImage writes an image of a directory's files. Without one, it builds the same files as
// install, below the image's prefix. podman, docker and ctr load the archive. It has the same bytes
// for the same files, commit and tags; for files that it builds, with the same Go and gcc.
func containerImage(file, from string, i *image, engine bool) error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	version, when := packageVersion(root)
	if i.when = when; from == "" {
		i.version = version
		if from, err = os.MkdirTemp("", "softrnic-image"); err != nil {
			return err
		}
		defer os.RemoveAll(from)
		if err := install(filepath.Join(from, i.prefix), engine); err != nil {
			return err
		}
	}
	var out bytes.Buffer
	if err := errors.Join(i.pack(from), i.write(&out)); err != nil {
		return err
	}
	return os.WriteFile(file, out.Bytes(), 0o666)
}

func (i *image) add(name string, content []byte) {
	i.names = append(i.names, name)
	i.files[name] = content
}

// blob adds a file that is named after its content.
func (i *image) blob(mediaType string, content []byte) v1.Descriptor {
	sum := digest.FromBytes(content)
	i.add(blobName(sum), content)
	return v1.Descriptor{MediaType: mediaType, Digest: sum, Size: int64(len(content))}
}

func blobName(sum digest.Digest) string {
	return "blobs/" + sum.Algorithm().String() + "/" + sum.Encoded()
}

// pack adds the files of the archive: the layer, and what describes it.
func (i *image) pack(dir string) error {
	layer, err := i.layer(dir)
	if err != nil {
		return err
	}
	var compressed bytes.Buffer
	w := gzip.NewWriter(&compressed)
	_, err = w.Write(layer)
	err = errors.Join(err, w.Close())
	text := func(v any) []byte {
		b, failed := json.Marshal(v)
		err = errors.Join(err, failed)
		return b
	}
	when := i.when.UTC()
	var labels map[string]string
	if i.version != "" {
		labels = map[string]string{v1.AnnotationTitle: "softrnic", v1.AnnotationVersion: i.version, v1.AnnotationLicenses: "Apache-2.0"}
	}
	config := i.blob(v1.MediaTypeImageConfig, text(v1.Image{
		Created:  &when,
		Platform: v1.Platform{Architecture: runtime.GOARCH, OS: "linux"},
		Config: v1.ImageConfig{Entrypoint: i.entry, Labels: labels,
			Env: []string{"PATH=" + path.Dir(i.entry[0]) + ":/usr/sbin:/usr/bin:/sbin:/bin"}},
		RootFS:  v1.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(layer)}},
		History: []v1.History{{Created: &when, CreatedBy: "go run ./cmd/dropin/build -image"}},
	}))
	content := i.blob(v1.MediaTypeImageLayerGzip, compressed.Bytes())
	manifest := i.blob(v1.MediaTypeImageManifest, text(v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: v1.MediaTypeImageManifest, Config: config, Layers: []v1.Descriptor{content}}))
	manifest.Annotations = map[string]string{v1.AnnotationRefName: i.name, "io.containerd.image.name": i.name}
	i.add(v1.ImageIndexFile, text(v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex,
		Manifests: []v1.Descriptor{manifest}}))
	i.add(v1.ImageLayoutFile, text(v1.ImageLayout{Version: v1.ImageLayoutVersion}))
	i.add("manifest.json", text([]any{map[string]any{"Config": blobName(config.Digest), "RepoTags": []string{i.name},
		"Layers": []string{blobName(content.Digest)}}}))
	return err
}

// layer returns an archive of a directory's files. They belong to root.
func (i *image) layer(dir string) ([]byte, error) {
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
		*h = tar.Header{Typeflag: h.Typeflag, Name: filepath.ToSlash(relative), Linkname: link, Size: h.Size, Mode: h.Mode,
			ModTime: i.when, Format: tar.FormatPAX}
		if d.IsDir() {
			h.Name += "/"
		}
		if i.version != "" {
			if h.Mode &= 0o111; d.IsDir() || h.Mode != 0 {
				h.Mode = 0o111
			}
			h.Mode |= 0o644
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

// write writes the archive: an image in the layout of OCI, with a manifest for releases of Docker
// before 25.
func (i *image) write(out io.Writer) error {
	w := tar.NewWriter(out)
	for _, name := range i.names {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(i.files[name])), Mode: 0o644, ModTime: i.when,
			Format: tar.FormatPAX}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := w.Write(i.files[name]); err != nil {
			return err
		}
	}
	return w.Close()
}
