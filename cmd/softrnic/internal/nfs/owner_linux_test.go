package nfs

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// TestOwner: a file whose mode allows nothing to its owner can still be written and read by the
// client that has it open, when the server is not root, and also after the server has closed it.
// Files of others cannot.
func TestOwner(t *testing.T) {
	const variable, nobody = "SOFTRNIC_TEST_OWNER", 65534
	dir := os.Getenv(variable)
	switch {
	case dir == "" && os.Geteuid() == 0: // the test runs again, as another user
		dir, err := os.MkdirTemp("", "owner")
		ok(t, err)
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		ok(t, os.Chmod(dir, 0o755))
		ok(t, os.Mkdir(filepath.Join(dir, "export"), 0o755))
		ok(t, os.WriteFile(filepath.Join(dir, "export", "others"), []byte("text"), 0o444))
		ok(t, os.Chown(filepath.Join(dir, "export"), nobody, nobody))
		cmd := exec.Command(copyProgram(t, dir), "-test.run=^TestOwner$", "-test.v")
		cmd.Env = append(os.Environ(), variable+"="+filepath.Join(dir, "export"))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	case dir == "":
		dir = t.TempDir()
	}
	e := exported(t, opened(t, dir), false)
	c := local(e)
	root := c.mount(t, "/")
	files := map[int][]byte{}
	for _, mode := range []int{0o444, 0o400, 0} {
		x := c.must(t, procCreate, join([]any{root, fmt.Sprint(mode), createGuarded}, sattrOf(mode, -1))...)
		x.uint32()
		files[mode] = x.bytes(handleMax)
		c.write(t, files[mode], 0, []byte("first"), 0)
	}
	for i := range 2 * maxKept {
		c.write(t, c.create(t, root, fmt.Sprint("other", i)), 0, []byte("x"), 0)
	}
	for mode, file := range files {
		c.write(t, file, 5, []byte("next"), 0)
		c.must(t, procCommit, file, uint64(0), 0)
		if got, _ := c.read(t, file, 0, 20); string(got) != "firstnext" || c.getattr(t, file).mode != uint32(mode) {
			t.Errorf("the file of mode %o has %q, and mode %o", mode, got, c.getattr(t, file).mode)
		}
		c.must(t, procSetattr, join([]any{file}, sattrOf(-1, 3), []any{0})...)
	}
	if _, err := os.Stat(filepath.Join(dir, "others")); err == nil {
		if s, _ := c.nfs(t, procWrite, c.lookup(t, root, "others"), uint64(0), 1, 0, "x"); s != nfsAcces {
			t.Errorf("a file of another user: %d", s)
		}
	}
}

// copyProgram copies this program to a directory, where other users can start it.
func copyProgram(t *testing.T, dir string) string {
	t.Helper()
	from, err := os.Open("/proc/self/exe")
	ok(t, err)
	defer from.Close()
	name := filepath.Join(dir, "program")
	to, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o755)
	ok(t, err)
	_, err = io.Copy(to, from)
	ok(t, err)
	ok(t, to.Close())
	return name
}
