// Package debianroot runs commands in the root file system of a release of Debian that is not the
// machine's. mmdebstrap makes it, in the user's cache.
package debianroot

import (
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/softrnic/softrnic/tests/system/internal/apt"
)

//go:embed enter.sh
var enterScript string

// names are the releases by the beginning or the end of /etc/debian_version.
var names = []struct{ begin, end, name string }{
	{"12.", "", "bookworm"}, {"13.", "", "trixie"}, {"", "/sid", "sid"},
}

// Here returns the release of this machine, or of the root file system that this process is in.
func Here() (string, error) {
	text, err := os.ReadFile("/etc/debian_version")
	if err != nil {
		return "", err
	}
	return parse(strings.TrimSpace(string(text)))
}

func parse(version string) (string, error) {
	for _, n := range names {
		if strings.HasPrefix(version, n.begin) && strings.HasSuffix(version, n.end) {
			return n.name, nil
		}
	}
	return "", fmt.Errorf("/etc/debian_version is %q, which is none of the known releases", version)
}

// Root is a root file system.
type Root struct{ dir string }

// Cache is the directory of the root file systems, in the user's cache directory.
const Cache = "softrnic-root"

// Make returns the root file system of a release with these packages, and creates it if it does not
// exist. It replaces one of the same release with other packages. The Release file of sid may have
// expired.
func Make(release string, packages []string) (*Root, error) {
	user, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	cache := filepath.Join(user, Cache)
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	packages = slices.Sorted(slices.Values(packages))
	r := &Root{dir: filepath.Join(cache, fmt.Sprintf("%s-%x", release, sha256.Sum256([]byte(strings.Join(packages, " "))))[:len(release)+17])}
	switch _, err := os.Stat(r.dir); {
	case err == nil:
		return r, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	old, err := filepath.Glob(filepath.Join(cache, release+"-*"))
	if err != nil {
		return nil, err
	}
	for _, dir := range old {
		if err := os.RemoveAll(dir); err != nil {
			return nil, err
		}
	}
	return r, r.make(cache, release, packages)
}

func (r *Root) make(cache, release string, packages []string) error {
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		if err := apt.Install([]string{"mmdebstrap"}); err != nil {
			return err
		}
	}
	fmt.Fprintf(os.Stderr, "making a root file system of Debian %s with mmdebstrap, which takes some minutes\n", release)
	// Every user must reach it.
	work, err := os.MkdirTemp(cache, "making-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	root := filepath.Join(work, "root")
	cmd := exec.Command("mmdebstrap", "--quiet", "--mode=root", "--variant=apt", "--components=main,non-free",
		"--aptopt=APT::Install-Recommends \"false\"", "--aptopt=Acquire::Languages \"none\"",
		"--aptopt=Acquire::Check-Valid-Until \"false\"", "--dpkgopt=force-unsafe-io",
		"--include="+strings.Join(packages, ","), release, root, "http://deb.debian.org/debian")
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mmdebstrap of %s: %w\n%s", release, err, out)
	}
	if err := os.Rename(root, r.dir); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil // another process has made it meanwhile
}

// Command returns a command in the root file system, in a mount namespace of its own. It sees this
// machine's paths at the same places, and its working directory is one of them or below. temp is an
// empty directory of this machine, for its /tmp.
func (r *Root) Command(temp string, paths []string, args ...string) *exec.Cmd {
	cmd := exec.Command("unshare",
		slices.Concat([]string{"--mount", "sh", "-c", enterScript, "enter.sh", r.dir, temp}, paths, []string{"--"}, args)...)
	cmd.Env = append(os.Environ(), "TMPDIR=/tmp", "LC_ALL=C.UTF-8")
	return cmd
}
