package kubernetes

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/cdi"
)

// install copies the libraries and the command from a container to a directory of the node, at
// which containers of pods find them. The copy is in a directory that is named after its content:
// pods that use an earlier version keep it. It returns the directory of the libraries and the file
// of the command.
func install(libs, command, to string) (newLibs, newCommand string, err error) {
	content := sha256.New()
	var files []string // of libs
	err = filepath.WalkDir(libs, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files = append(files, name)
		fmt.Fprintln(content, name)
		return read(content, name)
	})
	if err = errors.Join(err, read(content, command)); err != nil {
		return "", "", err
	}
	dir := filepath.Join(to, hex.EncodeToString(content.Sum(nil))[:16])
	newLibs, newCommand = filepath.Join(dir, dropin.LibDir), filepath.Join(dir, "bin", "softrnic")
	targets := map[string]string{command: "bin/softrnic"}
	for _, f := range files {
		below, err := filepath.Rel(libs, f)
		if err != nil {
			return "", "", err
		}
		targets[f] = filepath.Join(dropin.LibDir, below)
	}
	if _, err := os.Stat(dir); err == nil {
		return newLibs, newCommand, duplicate(targets, dir)
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return "", "", err
	}
	work, err := os.MkdirTemp(to, ".install-")
	if err != nil {
		return "", "", err
	}
	defer os.RemoveAll(work)
	if err := errors.Join(duplicate(targets, work), os.Chmod(work, 0o755)); err != nil {
		return "", "", err
	}
	if err := os.Rename(work, dir); err != nil && !errors.Is(err, fs.ErrExist) { // another process was faster
		return "", "", err
	}
	return newLibs, newCommand, nil
}

// read copies a file to w.
func read(w io.Writer, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

// duplicate copies files to their names below a directory, unless they are there with the same
// content. After a crash of the node, a file that is there may be damaged. Everybody may read and
// execute the copies.
func duplicate(targets map[string]string, dir string) error {
	for from, below := range targets {
		text, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		to := filepath.Join(dir, below)
		if was, err := os.ReadFile(to); err == nil && bytes.Equal(was, text) {
			continue
		}
		if err := cdi.WriteFile(to, text, 0o755); err != nil {
			return err
		}
	}
	return nil
}
