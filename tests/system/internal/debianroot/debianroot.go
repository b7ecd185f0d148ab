// Package debianroot runs commands in the root file system of a release of Debian that is not the
// machine's. mmdebstrap makes it, in the user's cache.
package debianroot

import (
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/softrnic/softrnic/tests/system/internal/apt"
)

//go:embed enter.sh
var enterScript string

// Here returns the release of this machine, or of the root file system that this process is in.
func Here() (string, error) {
	text, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", err
	}
	return parse(string(text))
}

// parse returns the release that a text of /etc/os-release names. Testing and sid have the same
// one, without a number. Ubuntu is not taken for the sid that it was made from, which its
// /etc/debian_version names.
func parse(osRelease string) (string, error) {
	values := make(map[string]string)
	for line := range strings.Lines(osRelease) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		values[name] = strings.Trim(value, `"'`)
	}
	switch codename := values["VERSION_CODENAME"]; {
	case values["ID"] != "debian":
		return "", fmt.Errorf("/etc/os-release names the system %q: must be debian", values["ID"])
	case values["VERSION_ID"] == "":
		return "sid", nil
	case codename == "":
		return "", fmt.Errorf("/etc/os-release has no VERSION_CODENAME for version %q", values["VERSION_ID"])
	default:
		return codename, nil
	}
}

// Root is a root file system.
type Root struct {
	dir   string
	inUse *os.File // locked, so that no other process removes the root file system
}

// Cache is the directory of the root file systems, in the user's cache directory.
const Cache = "softrnic-root"

// MaxAge is the time after which a root file system is made anew, with the packages of that day.
const MaxAge = 14 * 24 * time.Hour

const (
	making = "making-"    // begins the name of a directory that mmdebstrap fills
	day    = "2006-01-02" // ends the name of a root file system, in UTC
)

// Make returns the root file system of a release with these packages, and creates it if there is
// none, or only one older than MaxAge. It removes those that nothing will use any more: older ones,
// those of the release with other packages, and what an interrupted process has left. The Release
// file of sid may have expired. One process at a time creates a root file system, the others wait.
func Make(release string, packages []string) (*Root, error) {
	user, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	cache := filepath.Join(user, Cache)
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	mutex, err := os.Create(filepath.Join(cache, "lock"))
	if err != nil {
		return nil, err
	}
	defer mutex.Close() // and unlock
	if err := lock(mutex, exclusive); err != nil {
		return nil, err
	}

	entries, err := os.ReadDir(cache)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	packages = slices.Sorted(slices.Values(packages))
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(packages, " "))))[:16]
	now := time.Now().UTC()
	name, stale := choose(names, release, sum, now)
	for _, s := range stale {
		if err := removeUnused(filepath.Join(cache, s)); err != nil {
			return nil, err
		}
	}
	if name == "" {
		name = strings.Join([]string{release, sum, now.Format(day)}, "-")
		if err := create(cache, name, release, packages, mutex); err != nil {
			return nil, err
		}
	}
	r := &Root{dir: filepath.Join(cache, name)}
	if r.inUse, err = os.Open(r.dir); err != nil {
		return nil, err
	}
	return r, lock(r.inUse, shared)
}

// choose returns the newest of these directories that is a root file system of a release, with the
// packages of a sum, and not too old; or "". stale are those that nothing will use any more.
func choose(names []string, release, sum string, now time.Time) (use string, stale []string) {
	prefix := release + "-" + sum + "-"
	for _, name := range slices.Backward(slices.Sorted(slices.Values(names))) {
		of, _, _ := strings.Cut(name, "-")
		made, err := time.Parse(day, strings.TrimPrefix(name, prefix))
		age := now.Sub(made)
		switch {
		case of == release && use == "" && err == nil && age >= 0 && age <= MaxAge:
			use = name
		case of == release, strings.HasPrefix(name, making):
			stale = append(stale, name)
		}
	}
	return use, stale
}

// removeUnused removes a directory, unless a process uses it.
func removeUnused(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close() // and unlock
	if err := lock(f, exclusive|atOnce); errors.Is(err, errLocked) {
		return nil
	} else if err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// New makes the root file system of a release with these packages in a directory that does not
// exist.
func New(dir, release string, packages []string) (*Root, error) {
	return &Root{dir: dir}, create(filepath.Dir(dir), filepath.Base(dir), release, packages)
}

// trust makes a root file system reach others through a proxy that only this machine's own
// certificates vouch for.
const trust = `cp -a /usr/local/share/ca-certificates "$1/usr/local/share/" && chroot "$1" update-ca-certificates`

// create makes a root file system in the cache. mmdebstrap inherits the lock of the cache: if this
// process is killed, others wait until mmdebstrap has ended.
func create(cache, name, release string, packages []string, mutex ...*os.File) error {
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		if err := apt.Install([]string{"mmdebstrap"}); err != nil {
			return err
		}
	}
	fmt.Fprintf(os.Stderr, "making a root file system of Debian %s with mmdebstrap, which takes some minutes\n", release)
	// Every user must reach it.
	work, err := os.MkdirTemp(cache, making)
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	root := filepath.Join(work, "root")
	cmd := exec.Command("mmdebstrap", "--quiet", "--mode=root", "--variant=apt", "--components=main,non-free",
		"--aptopt=APT::Install-Recommends \"false\"", "--aptopt=Acquire::Languages \"none\"",
		"--aptopt=Acquire::Check-Valid-Until \"false\"", "--dpkgopt=force-unsafe-io",
		"--include=ca-certificates,"+strings.Join(packages, ","), "--customize-hook="+trust, release, root, "http://deb.debian.org/debian")
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	cmd.ExtraFiles = mutex
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mmdebstrap of %s: %w\n%s", release, err, out)
	}
	return os.Rename(root, filepath.Join(cache, name))
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
