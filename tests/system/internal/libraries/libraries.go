// Package libraries builds the drop-in libraries once for all tests that need them.
package libraries

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// Variable is the environment variable with a directory that Build has already filled.
const Variable = "SOFTRNIC_DROPIN"

// Build creates a directory that every user may read, with the libraries and the program softrnic.
func Build() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "softrnic-dropin"); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(dir)
		}
	}()
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env: %w", err)
	}
	for _, args := range [][]string{{"run", "./cmd/libsoftrnic/build", "-o", dir},
		{"build", "-o", filepath.Join(dir, "softrnic"), "./cmd/softrnic"}} {
		cmd := exec.Command("go", args...)
		cmd.Dir = filepath.Dir(strings.TrimSpace(string(out)))
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return dir, nil
}

var own string // the directory that this process has created

// Directory returns the directory that Variable names, or else the directory that the first call
// builds.
var Directory = sync.OnceValues(func() (dir string, err error) {
	if dir := os.Getenv(Variable); dir != "" {
		return dir, nil
	}
	own, err = Build()
	return own, err
})

// Remove removes the directory that Directory has built. TestMain calls it.
func Remove() {
	if own != "" {
		_ = os.RemoveAll(own)
	}
}
