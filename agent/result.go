package agent

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Status is how an operation ended. Every surface decides by it.
type Status string

// The statuses.
const (
	StatusReplied          Status = "replied"                 // with evidence, if it was delegated
	StatusDone             Status = "done"                    // what was asked for is so; nothing was sent to a business's agent
	StatusNeedsUserAction  Status = "needs_user_action"       // the owner must sign in
	StatusApprovalRequired Status = "local_approval_required" // the owner must approve
	StatusDenied           Status = "denied"                  // by the owner, here or there
	StatusExpired          Status = "expired"
	StatusCancelled        Status = "cancelled"       // nothing was sent
	StatusUnknown          Status = "outcome_unknown" // it may have run: do not repeat it by another route
	StatusBlocked          Status = "blocked"
	StatusUnsupported      Status = "unsupported"
	StatusFailed           Status = "failed" // nothing ran
)

// Reason is the stable code of why, beside those of cards (ReasonInvalidCard …),
// tokens, metadata and grants, of Classify, and of egress.
type Reason = string

// The reasons, by what they are about.
const (
	// Availability (PO-1), preference and identity.
	ReasonDisabledByEnv       Reason = "disabled_by_env"
	ReasonDisabledByAdmin     Reason = "disabled_by_admin"
	ReasonDisabledInSettings  Reason = "disabled_in_settings"
	ReasonIdentityNotSet      Reason = "identity_not_configured"
	ReasonPACTDisabled        Reason = "pact_disabled"
	ReasonIdentityNotReady    Reason = "identity_not_ready"
	ReasonIdentityChanged     Reason = "identity_changed"
	ReasonSignerDisabled      Reason = "signer_disabled"
	ReasonCredentialRejected  Reason = "credential_rejected"
	ReasonSignerUnavailable   Reason = "signer_unavailable"
	ReasonAudienceUnknown     Reason = "audience_not_registered"
	ReasonIssuerMismatch      Reason = "issuer_mismatch"
	ReasonIdentityRejected    Reason = "identity_rejected"
	ReasonSubjectChanged      Reason = "subject_changed"
	ReasonIdentityKeyRejected Reason = "signer_key_unusable"

	// Providers (PR-3).
	ReasonBlockedByAdmin Reason = "blocked_by_admin"
	ReasonNoAudience     Reason = "audience_not_configured"

	// Routes (PO-3), beside pact_disabled and identity_not_ready.
	ReasonNotSupported     Reason = "not_supported"
	ReasonProviderNotReady Reason = "provider_not_ready"
	ReasonCardRejected     Reason = "card_rejected"

	// Discovery (DI-2, DI-10).
	ReasonNotFound     Reason = "not_found"
	ReasonFetchFailed  Reason = "fetch_failed"
	ReasonInvalidJSON  Reason = "invalid_json"
	ReasonCardChanged  Reason = "card_changed"
	ReasonInvalidInput Reason = "invalid_input"

	// Admission (AD-1, AD-2) and approval (AP-4, AD-9).
	ReasonDelegationRequired  Reason = "delegation_required"
	ReasonBlankMessage        Reason = "blank_message"
	ReasonMessageTooLong      Reason = "message_too_long"
	ReasonSensitiveContent    Reason = "sensitive_content"
	ReasonUnknownScope        Reason = "unknown_scope"
	ReasonTooManyScopes       Reason = "too_many_scopes"
	ReasonApprovalRequired    Reason = "local_approval_required"
	ReasonApprovalUnavailable Reason = "interactive_approval_unavailable"
	ReasonApprovalDenied      Reason = "local_approval_denied"
	ReasonModeForbids         Reason = "mode_forbids_sending" // AD-4
	ReasonTokenExceeds        Reason = "token_exceeds_operation"
	ReasonTooManyApprovals    Reason = "too_many_approvals"
	ReasonApprovalExpired     Reason = "approval_expired"
	ReasonApprovalReplaced    Reason = "approval_replaced" // by another one, of what it became
	ReasonApprovalOver        Reason = "approval_over"     // it was sent, withdrawn or refused
	ReasonApproverRevoked     Reason = "approver_revoked"  // what it was approved by was revoked before it was sent

	// Consent (DA).
	ReasonConsentScope       Reason = "consent_invalid_scope"
	ReasonConsentRejected    Reason = "consent_provider_rejected"
	ReasonConsentUnsafe      Reason = "consent_unsafe_verification_uri"
	ReasonConsentUnavailable Reason = "consent_unavailable"
	ReasonNotDelegated       Reason = "not_delegated"
	ReasonSignInPending      Reason = "business_consent_required"
	ReasonConsentElsewhere   Reason = "consent_elsewhere"
	ReasonLeaseLost          Reason = "lease_lost"
	ReasonAccessDenied       Reason = "access_denied"
	ReasonConsentExpired     Reason = "consent_expired"
	ReasonUserCancelled      Reason = "cancelled_by_user"
	ReasonPollFailed         Reason = "polling_failed"
	ReasonInsufficient       Reason = "insufficient_permission"
	ReasonTaskNotWaiting     Reason = "task_not_waiting" // DA-9
	ReasonInputPending       Reason = "input_pending"    // DA-13
	ReasonOtherTask          Reason = "task_mismatch"    // RS-4; or a conversation of another task
	ReasonTooManySignIns     Reason = "too_many_sign_ins"
	ReasonOtherNetwork       Reason = "network_profile_mismatch" // RS-5

	// Grants (GR-11).
	ReasonCardSecurity    Reason = "business_card_changed"
	ReasonReconnect       Reason = "reconnect_required"
	ReasonRefreshRejected Reason = "refresh_rejected"
	ReasonRefreshWidened  Reason = "refresh_widened"
	ReasonDelegationGone  Reason = "delegation_rejected"
	ReasonSecretMissing   Reason = "secret_missing"
	ReasonLapsed          Reason = "expired"
	ReasonOwnerEnded      Reason = "disconnected"
	ReasonNewerGrant      Reason = "superseded"

	// Turns (CV) and recovery (RS).
	ReasonBusy              Reason = "conversation_busy"
	ReasonUnresolved        Reason = "unresolved_operation"
	ReasonClosed            Reason = "conversation_closed"
	ReasonNotThisBusiness   Reason = "conversation_of_another_business"
	ReasonContextLimit      Reason = "context_limit"
	ReasonStepUpUnsupported Reason = "step_up_unsupported"
	ReasonStillProcessing   Reason = "provider_still_processing"
	ReasonInterrupted       Reason = "interrupted_during_send"
	ReasonNeverSent         Reason = "never_sent"
	ReasonContextClosed     Reason = "context_closed"

	// Reconciling (CV-14) and review (EV-7).
	ReasonNothingToReconcile  Reason = "nothing_to_reconcile"
	ReasonSeveralUnresolved   Reason = "several_unresolved_operations"
	ReasonReconcileImpossible Reason = "reconcile_impossible"
	ReasonAuthorityChanged    Reason = "authority_changed"
	ReasonReconcileFirst      Reason = "reconcile_first"

	// Evidence (EV-5).
	ReasonEvidenceReview Reason = "evidence_review_required"
)

// Result is how an operation ended, and all that a surface may show of it: it
// holds no token, code, link or subject.
type Result struct {
	Status   Status `json:"status"`
	Reason   Reason `json:"reason,omitzero"`
	Detail   string `json:"detail,omitzero"` // for people: what to do
	Business string `json:"business,omitzero"`
	// Conversation and Message are those of the operation; with unresolved_operation
	// those of the one whose outcome is not known.
	Conversation string  `json:"conversation,omitzero"`
	Message      string  `json:"message,omitzero"`
	Effect       *Effect `json:"effect,omitzero"`
	// Reply is the business's text: untrusted data (CV-8, RD-4).
	Reply string `json:"reply,omitzero"`
	// Evidence is there if the turn was delegated.
	Evidence      *EvidenceView      `json:"evidence,omitzero"`
	Authorization *AuthorizationView `json:"authorization,omitzero"`
	Grant         *GrantView         `json:"grant,omitzero"`
	// Approval is what the owner has to approve, or approved and what waits for more,
	// or decided on.
	Approval *ApprovalView `json:"approval,omitzero"`
	// MissingScopes are those that a step-up asked for.
	MissingScopes []string `json:"missingScopes,omitempty"`
}

// EvidenceView is a verdict as a surface shows it.
type EvidenceView struct {
	Receipt string   `json:"receipt,omitzero"`
	Verdict Verdict  `json:"verdict"`
	Issues  []string `json:"issues,omitempty"`
}

// ApprovalView is an ApprovalRequest as a program reads it, and what became of it.
type ApprovalView struct {
	ID           string   `json:"id,omitzero"`
	State        string   `json:"state,omitzero"`
	Reason       Reason   `json:"reason,omitzero"`
	Business     string   `json:"business,omitzero"` // its id
	BusinessName string   `json:"businessName"`      // untrusted
	Destination  string   `json:"destination"`
	Message      string   `json:"message"`
	Effect       Effect   `json:"effect"`
	Scopes       []string `json:"scopes"`
	// Permissions are the Scopes with their descriptions, which are untrusted.
	Permissions []Scope `json:"permissions"`
	Digest      string  `json:"digest"`
	Exceeds     bool    `json:"tokenExceedsOperation"`
	// TokenPermissions is what the token can do that Exceeds.
	TokenPermissions []Scope `json:"tokenPermissions,omitempty"`
	// Changed: something was approved before and this differs from it.
	Changed bool `json:"changed,omitzero"`
	// SentBefore: a reconcile of what was sent then.
	SentBefore time.Time `json:"sentBefore,omitzero"`

	Conversation string    `json:"conversation,omitzero"`
	Task         string    `json:"task,omitzero"`  // that asked for it
	Actor        string    `json:"actor,omitzero"` // who asked for it
	Created      time.Time `json:"created,omitzero"`
	Expires      time.Time `json:"expires,omitzero"`
	Decided      time.Time `json:"decided,omitzero"`
	DecidedBy    string    `json:"decidedBy,omitzero"`
	// SentMessage is the id of the message that went out under it.
	SentMessage string `json:"sentMessage,omitzero"`
	// Authorization is the sign-in that it waits for, once approved.
	Authorization string `json:"authorization,omitzero"`
	// Next is the id of the approval that took its place.
	Next string `json:"next,omitzero"`
}

// Refusal is the error of an operation that ended otherwise than it was meant
// to, for a reason that the rules name.
type Refusal struct {
	Status Status
	Reason Reason
	Detail string
	Err    error // the cause, if another package knows it; no secrets
}

func (e *Refusal) Error() string {
	if text := e.Text(); text != "" {
		return e.Reason + ": " + text
	}
	return e.Reason
}

// Text is the refusal for people, without its Reason: that stands beside it.
func (e *Refusal) Text() string {
	switch {
	case e.Detail != "":
		return e.Detail
	case e.Err != nil: // which may be of the same code
		return RedactText(strings.Replace(e.Err.Error(), ": "+e.Reason+": ", ": ", 1))
	}
	return ""
}

func (e *Refusal) Unwrap() error { return e.Err }

func refuse(status Status, reason Reason, format string, args ...any) error {
	return &Refusal{Status: status, Reason: reason, Detail: strings.ToValidUTF8(fmt.Sprintf(format, args...), "\uFFFD")}
}

func refuseErr(status Status, reason Reason, err error) error {
	return &Refusal{Status: status, Reason: reason, Err: err}
}

// ReasonOf is the reason of a refusal, and empty for any other error.
func ReasonOf(err error) Reason {
	var r *Refusal
	if errors.As(err, &r) {
		return r.Reason
	}
	return ""
}
