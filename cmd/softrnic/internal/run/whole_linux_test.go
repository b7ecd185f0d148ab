package run

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// TestWhole: the program may become another user, who then empties the file by its name; others
// cannot find the name.
func TestWhole(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: another user")
	}
	dir, err := os.MkdirTemp("", "whole") // t.TempDir's parent is closed to others
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", dir)
	w, remove, err := newWhole()
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	other := func(script string) error {
		cmd := exec.Command("sh", "-c", script, "sh", filepath.Dir(string(w)), string(w))
		cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		return cmd.Run()
	}
	if err := other(`ls "$1"`); err == nil {
		t.Error("another user lists the file's directory")
	}
	if err := other(`for f in "$1"/* "$1/whole"; do : >"$f"; done`); err == nil || w.or(nil) != nil {
		t.Errorf("another user's attempt: %v; then %v", err, w.or(nil))
	}
	if err := other(`: >"$2"`); err != nil || w.or(nil) == nil {
		t.Errorf("the program as another user: %v; then the file is not empty", err)
	}
}
