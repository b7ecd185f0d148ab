package rdmatransport

import (
	"github.com/softrnic/softrnic/rdmatransport/internal/roce/classify"
	"github.com/softrnic/softrnic/stack"
)

// NewClassifier makes what a hub ([stack.Shared]) needs to know of RoCE. It remembers the last
// 65,536 connections of each process and 16,384 requests of peers.
func NewClassifier() stack.Classifier { return classify.New() }
