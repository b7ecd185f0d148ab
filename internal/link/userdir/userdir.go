// Package userdir provides directories for unix sockets and locks. The processes of one user share
// them, and no other user can reach them.
package userdir

import (
	"os"
	"path/filepath"
	"strconv"
)

// Default returns softrnic in $XDG_RUNTIME_DIR. If that is not set, or belongs to another user, it
// returns softrnic-UID in the directory for temporary files. The second case occurs after a program
// has given up root's rights.
func Default() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) && !ownedByOther(dir) {
		return filepath.Join(dir, "softrnic")
	}
	return filepath.Join(os.TempDir(), "softrnic-"+strconv.Itoa(os.Getuid()))
}
