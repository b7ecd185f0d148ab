// Package apt installs Debian packages.
package apt

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Install installs packages.
func Install(packages []string) error {
	const wait = "DPkg::Lock::Timeout=300"
	for _, args := range [][]string{
		{"-qq", "-o", wait, "update"},
		append([]string{"-qq", "-y", "-o", wait, "--no-install-recommends", "install"}, packages...),
	} {
		cmd := exec.Command("apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}
