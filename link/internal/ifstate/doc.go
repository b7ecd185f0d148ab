// Package ifstate follows the state and the MTU of a kernel interface that carries a link.
package ifstate
