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
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/link/userdir"
)

// portsFile is the name of the file with the hash of the ports' files, in a container's directory.
const portsFile = "ports"

// lockLimit is the longest wait for other processes that update a container's directory.
const lockLimit = 2 * time.Second

// describeContainer makes the files of the devices in this user's directory as the devices are, and
// prints their directory. Processes of a container with the same devices share it: its name is the
// hash of the files that do not change. Nothing removes it before the container ends.
//
// Each process calls this command when it first looks at the files. When an address or an interface
// has changed, it calls it again with the directory, in which only the ports then change: the
// program may have its devices already.
func (c *Command) describeContainer(e *cli.Env) (err error) {
	cfg, err := c.Complete(os.Getenv)
	if err != nil {
		return err
	}
	parent := filepath.Join(userdir.Default(), "sysfs")
	if err := userdir.Make(parent); err != nil {
		return err
	}
	if c.Tree != "" && !slices.ContainsFunc(cfg.Rails, follows) {
		return printTree(e, c.Tree) // another node would take another address
	}
	t, err := gather(e, &cfg, "", true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.of.leave()) }()
	if err := t.keepKernels(); err != nil {
		return err
	}
	tree := c.Tree
	if tree == "" {
		tree = filepath.Join(parent, t.hash())
		if err := t.createShared(parent, tree); err != nil {
			return err
		}
	}
	if err := t.of.updateShared(parent, tree); err != nil {
		return err
	}
	return printTree(e, tree)
}

func printTree(e *cli.Env, tree string) error {
	_, err := fmt.Fprintln(e.Stdout, tree)
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
	if err := lockSoon(lock); err != nil {
		return fmt.Errorf("lock %s: %w", parent, err)
	}
	next := filepath.Join(root, "next") // of a process with the lock
	// Whoever is killed before the end leaves no hash.
	if err := errors.Join(os.RemoveAll(next), os.RemoveAll(filepath.Join(root, portsFile))); err != nil {
		return err
	}
	for _, p := range d.ports {
		if !slices.Contains(d.nodes, p.n) {
			continue // closed: it does not change
		}
		// Others that have had the lock since may have seen a later state.
		if _, err := p.look(); err != nil {
			return err
		}
		if err := errors.Join(p.load(root), p.write(root, next)); err != nil {
			return err
		}
	}
	return d.writeHash(root)
}

// lockSoon locks a file. It fails if another process has the lock for lockLimit: the program waits.
func lockSoon(f *os.File) error {
	for end := time.Now().Add(lockLimit); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(end) {
			return err
		}
	}
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
	return writeFile(unix.AT_FDCWD, filepath.Join(root, portsFile), d.hash(), 0o644)
}

func hashFiles(h hash.Hash, f map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(f)) {
		fmt.Fprintf(h, "%q %q ", name, f[name])
	}
	fmt.Fprint(h, "; ")
}
