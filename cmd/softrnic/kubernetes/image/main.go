// Command image writes a container image as an OCI archive, which ctr, podman, skopeo and kind
// load.
//
//	go run ./cmd/softrnic/kubernetes/image -o softrnic.tar
//
// Without -from, it builds the image of softrnic kubernetes: the command and the libraries, and
// nothing else. The archive has the same bytes whenever it is built from the same files.
package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// imageName is the name of the image of softrnic kubernetes. The image of cmd/dropin/build has
// another name, and its files in another directory.
const imageName = "localhost/softrnic-kubernetes:latest"

func main() {
	o := flag.String("o", "softrnic.tar", "the archive")
	name := flag.String("name", imageName, "the name of the image")
	from := flag.String("from", "", "pack this directory, as the root directory of the image, instead of building SoftRNIC")
	entry := flag.String("entrypoint", "/opt/softrnic/bin/softrnic", "the entry point: a program and arguments, separated by spaces")
	flag.Parse()
	if err := run(*o, *name, *from, strings.Fields(*entry)); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(archive, name, from string, entry []string) (err error) {
	if from == "" {
		if from, err = os.MkdirTemp("", "softrnic-image"); err != nil {
			return err
		}
		defer os.RemoveAll(from)
		if err := os.Chmod(from, 0o755); err != nil {
			return err
		}
		cmd := exec.Command("go", "run", "github.com/softrnic/softrnic/cmd/dropin/build", "-prefix", filepath.Join(from, "opt/softrnic"))
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%v: %w", cmd, err)
		}
	}
	layer, err := pack(from)
	if err != nil {
		return err
	}
	return write(archive, name, entry, layer)
}

// pack returns a directory as an archive, with files of root and of no time.
func pack(dir string) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		below, _ := filepath.Rel(dir, name)
		if err != nil || below == "." {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		target := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if target, err = os.Readlink(name); err != nil {
				return err
			}
		}
		h, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return err
		}
		h.Name, h.Uid, h.Gid, h.Uname, h.Gname, h.ModTime = below, 0, 0, "", "", time.Unix(0, 0)
		h.AccessTime, h.ChangeTime = time.Time{}, time.Time{}
		h.Format = tar.FormatPAX
		if err := w.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
			return err
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, f)
		return err
	})
	return b.Bytes(), errors.Join(err, w.Close())
}

// descriptor is one of the OCI image specification.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

func describe(kind string, content []byte) descriptor {
	return descriptor{MediaType: "application/vnd.oci.image." + kind, Digest: fmt.Sprintf("sha256:%x", sha256.Sum256(content)),
		Size: len(content)}
}

// write writes an image of one layer.
func write(archive, name string, entry []string, layer []byte) (err error) {
	f, err := os.Create(archive)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := tar.NewWriter(f)
	defer func() { err = errors.Join(err, w.Close()) }()
	add := func(name string, content []byte) {
		if err == nil {
			err = w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), ModTime: time.Unix(0, 0), Format: tar.FormatPAX})
		}
		if err == nil {
			_, err = w.Write(content)
		}
	}
	blob := func(kind string, content []byte) descriptor {
		d := describe(kind, content)
		add("blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:"), content)
		return d
	}
	text := func(v any) []byte {
		b, e := json.Marshal(v)
		err = errors.Join(err, e)
		return b
	}
	l := blob("layer.v1.tar", layer)
	config := blob("config.v1+json", text(map[string]any{"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": entry, "Env": []string{"PATH=/opt/softrnic/bin:/usr/sbin:/usr/bin:/sbin:/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{l.Digest}}}))
	manifest := blob("manifest.v1+json", text(map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": config, "layers": []descriptor{l}}))
	manifest.Annotations = map[string]string{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
	add("index.json", text(map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
		"manifests": []descriptor{manifest}}))
	add("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	return err
}
