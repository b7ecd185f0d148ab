package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// prerequisites checks for missing packages before the engine is compiled, which takes a minute.
// The flags are gcc's.
func prerequisites(flags ...string) error {
	const packages = "the build needs Debian's packages gcc, libc6-dev, libibverbs-dev and librdmacm-dev, or what has the same elsewhere"
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		return fmt.Errorf("%s: %w", packages, err)
	}
	cmd := exec.Command(gcc, append(flags, "-E", "-x", "c", "-o", os.DevNull, "-")...)
	cmd.Stdin = strings.NewReader("#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %s: %w\n%s", packages, gcc, err, out)
	}
	return nil
}
