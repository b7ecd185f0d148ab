// Package userdir provides the directories for unix sockets and locks that the processes of one
// user share and nobody else can reach.
package userdir

import (
	"os"
	"path/filepath"
	"strconv"
)

// Default returns softrnic in $XDG_RUNTIME_DIR. If that is not set or belongs to another user, as
// after a program has given up root's rights, it returns softrnic-UID in the directory for
// temporary files.
func Default() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) && !ownedByOther(dir) {
		return filepath.Join(dir, "softrnic")
	}
	return filepath.Join(os.TempDir(), "softrnic-"+strconv.Itoa(os.Getuid()))
}
