package userdir

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// Whoever creates softrnic-UID in the directory for temporary files first does not keep the user
// from a directory.
func TestTakenByOther(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: a directory of another user")
	}
	tmp, before := t.TempDir(), run
	t.Setenv("TMPDIR", tmp)
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("SOFTRNIC_DIRECTORY", "")
	run = filepath.Join(t.TempDir(), "run")
	t.Cleanup(func() { run = before })
	own := "softrnic-" + strconv.Itoa(os.Getuid())
	made := func(want string) {
		t.Helper()
		if got := Default(); got != want {
			t.Errorf("directory %s, want %s", got, want)
		}
		if err := Make(filepath.Join(Default(), "hub")); err != nil {
			t.Error(err)
		}
	}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	made(filepath.Join(tmp, own)) // a system without /run

	ok(os.RemoveAll(filepath.Join(tmp, own)))
	ok(os.Mkdir(filepath.Join(tmp, own), 0o755))
	ok(os.Chown(filepath.Join(tmp, own), 65534, -1))
	ok(os.MkdirAll(filepath.Join(run, "user", "0"), 0o700))
	ok(os.Chown(run, 65534, -1)) // as root of a user namespace sees the machine's
	made(filepath.Join(run, "user", "0", "softrnic"))

	ok(os.Chown(run, 0, -1))
	made(filepath.Join(run, own))
}
