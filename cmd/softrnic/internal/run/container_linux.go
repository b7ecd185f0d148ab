package run

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/link/userdir"
)

// portsFile is the name of the file with the hash of the ports' files, in a container's directory.
const portsFile = "ports"

// describeContainer makes the files of the devices in this user's directory as the devices are, and
// prints their directory. Processes of a container with the same devices share it: its name is the
// hash of the files that do not change. Each process calls this command when it first looks at the
// files, and again when an address or an interface of the container has changed. Nothing removes
// the directory before the container ends.
func (c *Command) describeContainer(e *cli.Env) (err error) {
	cfg, err := c.Complete(os.Getenv)
	if err != nil {
		return err
	}
	parent := filepath.Join(userdir.Default(), "sysfs")
	if err := userdir.Make(parent); err != nil {
		return err
	}
	t, err := gather(e, &cfg, "", true, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.of.leave()) }()
	tree := filepath.Join(parent, t.hash())
	if err := t.createShared(parent, tree); err != nil {
		return err
	}
	if err := t.of.updateShared(parent, tree); err != nil {
		return err
	}
	_, err = fmt.Fprintln(e.Stdout, tree)
	return err
}

// createShared creates the directory tree, unless it is there.
func (t *tree) createShared(parent, tree string) (err error) {
	if _, err := os.Stat(tree); err == nil {
		return nil
	}
	dir, err := os.MkdirTemp(parent, "new")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := errors.Join(t.write(dir), t.of.writeHash(dir)); err != nil {
		return err
	}
	// A directory with files cannot be replaced: another process has been faster.
	if err := os.Rename(dir, tree); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// updateShared makes the files of the ports below root as the devices are. Other processes may do
// so at the same time.
func (d *description) updateShared(parent, root string) error {
	if had, err := os.ReadFile(filepath.Join(root, portsFile)); err == nil && string(had) == d.hash() {
		return nil
	}
	lock, err := os.Open(parent)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", parent, err)
	}
	next := filepath.Join(root, "next") // of a process with the lock
	if err := os.RemoveAll(next); err != nil {
		return err
	}
	for _, p := range d.ports {
		// Others that have had the lock since may have seen a later state. Closed nodes do not change.
		if slices.Contains(d.nodes, p.n) {
			if _, err := p.look(); err != nil {
				return err
			}
		}
		if err := errors.Join(p.load(root), p.write(root, next)); err != nil {
			return err
		}
	}
	return d.writeHash(root)
}

// hash returns the name for a directory with these files. The ports' do not count.
func (t *tree) hash() string {
	h := sha256.New()
	hashFiles(h, t.files)
	hashFiles(h, t.links)
	for _, name := range slices.Sorted(maps.Keys(t.binary)) {
		fmt.Fprintf(h, "%q %x ", name, t.binary[name])
	}
	return fmt.Sprintf("%.16x", h.Sum(nil))
}

// hash returns the hash of the ports' files.
func (d *description) hash() string {
	h := sha256.New()
	for _, p := range d.ports {
		fmt.Fprintf(h, "%q ", p.at)
		hashFiles(h, p.files())
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

func (d *description) writeHash(root string) error {
	return writeFile(filepath.Join(root, portsFile), d.hash(), 0o644)
}

func hashFiles(h hash.Hash, f map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(f)) {
		fmt.Fprintf(h, "%q %q ", name, f[name])
	}
	fmt.Fprint(h, "; ")
}
