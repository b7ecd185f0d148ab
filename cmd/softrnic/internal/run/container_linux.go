package run

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/link/userdir"
)

// describeContainer creates the files of the devices in this user's directory, and prints their
// directory. The processes of a container share it, as long as the addresses are the same: its name
// depends on the files. Nothing removes it before the container ends.
func (c *Command) describeContainer(e *cli.Env) (err error) {
	cfg, err := c.Complete(os.Getenv)
	if err != nil {
		return err
	}
	parent := filepath.Join(userdir.Default(), "sysfs")
	if err := userdir.Make(parent); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(parent, "new")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	d, err := describe(e, &cfg, "", dir, true, true)
	if err != nil {
		return err
	}
	if err := d.leave(); err != nil {
		return err
	}
	sum, err := hashTree(dir)
	if err != nil {
		return err
	}
	tree := filepath.Join(parent, fmt.Sprintf("%.16x", sum))
	// A directory with files cannot be replaced.
	if err := os.Rename(dir, tree); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	_, err = fmt.Fprintln(e.Stdout, tree)
	return err
}

// hashTree returns a hash of the names, contents and links below a directory.
func hashTree(dir string) ([]byte, error) {
	h := sha256.New()
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		relative, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%q %v ", relative, d.Type())
		switch d.Type() {
		case 0:
			return hashFile(h, name)
		case fs.ModeSymlink:
			target, err := os.Readlink(name)
			fmt.Fprintf(h, "%q ", target)
			return err
		}
		return nil
	})
	return h.Sum(nil), err
}

func hashFile(h hash.Hash, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(h, f)
	return errors.Join(err, f.Close())
}
