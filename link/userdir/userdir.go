// Package userdir provides directories for unix sockets and locks. The processes of one user share
// them, and no other user can reach them. A directory of MakePublic is for a service of the
// machine.
//
// This package is for SoftRNIC's own packages, and its API may change in any version.
package userdir

import (
	"os"
	"path/filepath"
	"strconv"
)

// Default returns softrnic-UID in $SOFTRNIC_DIRECTORY, which is set in containers. Without that, it
// returns softrnic in $XDG_RUNTIME_DIR. If that is not set, or belongs to another user, it returns
// softrnic-UID in the directory for temporary files. The last case occurs after a program has given
// up root's rights.
func Default() string {
	own := "softrnic-" + strconv.Itoa(os.Getuid())
	if dir := os.Getenv("SOFTRNIC_DIRECTORY"); filepath.IsAbs(dir) {
		return filepath.Join(dir, own)
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) && !ownedByOther(dir) {
		return filepath.Join(dir, "softrnic")
	}
	return filepath.Join(os.TempDir(), own)
}
